// Shows the OpenAPI document of this server. Texts are inserted as text, never as markup.
"use strict";

const VERBS = ["get", "post", "put", "patch", "delete"];

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  if (schema.additionalProperties) return `map to ${typeOf(schema.additionalProperties)}`;
  return [schema.type].flat().join(" or ");
}

function rows(entries) {
  const row = ([name, type, text]) => element("tr", {},
    element("td", {}, element("code", { textContent: name })),
    element("td", { textContent: type }),
    element("td", { textContent: text || "" }));
  return element("table", {}, ...entries.map(row));
}

function fields(schema, schemas) {
  const target = schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
  const properties = Object.entries(target?.properties || {});
  return rows(properties.map(([name, field]) => [name, typeOf(field), field.description]));
}

function operation(verb, path, found, document) {
  const schemas = document.components.schemas;
  const body = [element("p", { textContent: found.description || "" })];
  const parameters = (found.parameters || []).map((one) => [one.name, `${one.in}, ${typeOf(one.schema)}`, one.description]);
  if (parameters.length) body.push(element("h4", { textContent: "Parameters" }), rows(parameters));
  const request = found.requestBody?.content["application/json"]?.schema;
  if (request) body.push(element("h4", { textContent: `Body: ${typeOf(request)}` }), fields(request, schemas));
  const [media, answer] = Object.entries(found.responses["200"].content)[0];
  body.push(element("h4", { textContent: `Answer (${media}): ${typeOf(answer.schema)}` }), fields(answer.schema, schemas));
  const server = `${location.origin}${document.servers[0].url}`;
  const sent = request ? " -d '{}'" : "";
  const call = `curl -X ${verb.toUpperCase()} -H "Authorization: Bearer $KEY"${sent} '${server}${path}'`;
  body.push(element("pre", { textContent: call }));
  const details = element("details", {},
    element("summary", {},
      element("span", { className: "verb", textContent: verb.toUpperCase() }),
      element("code", { textContent: path }),
      element("span", { className: "summary", textContent: found.summary })),
    ...body);
  details.dataset.words = `${verb} ${path} ${found.operationId} ${found.summary}`.toLowerCase();
  return details;
}

function show(document) {
  window.document.getElementById("about").textContent = document.info.description;
  const groups = new Map();
  for (const [path, verbs] of Object.entries(document.paths)) {
    for (const verb of VERBS.filter((verb) => verbs[verb])) {
      const tag = verbs[verb].tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(verb, path, verbs[verb], document));
    }
  }
  const sections = [...groups].sort(([one], [other]) => one.localeCompare(other))
    .map(([tag, operations]) => element("section", {}, element("h2", { textContent: tag }), ...operations));
  window.document.getElementById("operations").replaceChildren(...sections);
}

document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of document.querySelectorAll("section")) {
    let shown = 0;
    for (const details of section.querySelectorAll("details")) {
      details.hidden = !words.every((word) => details.dataset.words.includes(word));
      shown += details.hidden ? 0 : 1;
    }
    section.hidden = shown === 0;
  }
});

fetch("/api/v1/openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById("operations").textContent = `The document could not be read: ${error}`;
});
