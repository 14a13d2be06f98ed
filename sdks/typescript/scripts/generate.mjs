// Writes `src/generated/api.ts` from the OpenAPI document of a server: the types of all messages, and all operations.
//
//   node scripts/generate.mjs openapi.json           writes the file
//   node scripts/generate.mjs --print openapi.json   prints it
//
// The document is `GET /api/v1/openapi.json` of a running server. A test compares the file with the server's document.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const TARGET = fileURLToPath(new URL("../src/generated/api.ts", import.meta.url));
const HEADER = `// Generated from the OpenAPI document of the server by scripts/generate.mjs; do not edit.
/* eslint-disable */
`;
const VERBS = ["get", "post", "put", "patch", "delete"];
/** Names of messages that TypeScript uses itself. */
const RENAMED = new Map([["Error", "ErrorBody"]]);

/** Returns the text of the module. */
export function generate(document) {
  const schemas = Object.entries(document.components.schemas).sort(([one], [other]) => (one < other ? -1 : 1));
  const operations = listOperations(document);
  return [
    HEADER,
    ...schemas.map(([name, schema]) => schemaText(name, schema)),
    operationTypes(operations),
    operationTable(operations),
  ].join("\n");
}

function listOperations(document) {
  const found = [];
  for (const [path, verbs] of Object.entries(document.paths)) {
    for (const verb of VERBS) {
      const operation = verbs[verb];
      if (operation) found.push({ path, verb: verb.toUpperCase(), operation, hasRequestId: takesRequestId(operation, document) });
    }
  }
  return found.sort((one, other) => (one.operation.operationId < other.operation.operationId ? -1 : 1));
}

function takesRequestId(operation, document) {
  if (operation.parameters.some(({ name }) => name === "requestId")) return true;
  const name = bodyName(operation);
  return name !== undefined && "requestId" in document.components.schemas[name].properties;
}

function bodyName(operation) {
  return operation.requestBody?.content["application/json"].schema.$ref.split("/").at(-1);
}

function isStream(operation) {
  return "application/x-ndjson" in operation.responses["200"].content;
}

function answerName(operation) {
  const content = operation.responses["200"].content;
  return typeName((content["application/json"] ?? content["application/x-ndjson"]).schema.$ref.split("/").at(-1));
}

function typeName(name) {
  return RENAMED.get(name) ?? name;
}

function schemaText(name, schema) {
  return `${comment(schema.description, "")}export interface ${typeName(name)} ${objectType(schema, "")}\n`;
}

function objectType(schema, indent) {
  const inner = `${indent}  `;
  const fields = Object.entries(schema.properties ?? {}).map(
    ([name, field]) => `${comment(field.description, inner)}${inner}${property(name)}?: ${type(field, inner)};\n`,
  );
  return fields.length === 0 ? "{}" : `{\n${fields.join("")}${indent}}`;
}

function property(name) {
  return /^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name);
}

function type(schema, indent) {
  if (schema.$ref) return typeName(schema.$ref.split("/").at(-1));
  if (schema.anyOf) return schema.anyOf.map((one) => type(one, indent)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const types = [schema.type].flat();
  return types.map((word) => wordType(word, schema, indent)).join(" | ");
}

function wordType(word, schema, indent) {
  switch (word) {
    case "string":
    case "boolean":
    case "null":
      return word;
    case "integer":
    case "number":
      return "number";
    case "array": {
      const one = type(schema.items, indent);
      return one.includes(" | ") ? `(${one})[]` : `${one}[]`;
    }
    case "object":
      if (schema.properties) return objectType(schema, indent);
      return `Record<string, ${type(schema.additionalProperties, indent)}>`;
    default:
      throw new Error(`the generator does not know the type ${JSON.stringify(word)}`);
  }
}

function comment(text, indent) {
  return text ? `${indent}/** ${text.replaceAll("*/", "* /")} */\n` : "";
}

function operationTypes(operations) {
  const entries = operations.map(({ operation }) => {
    const inPath = operation.parameters.filter((one) => one.in === "path");
    const inQuery = operation.parameters.filter((one) => one.in === "query");
    const fields = (list, mark) =>
      list.length === 0
        ? "object"
        : `{ ${list.map((one) => `${property(one.name)}${mark}: ${type(one.schema, "")}`).join("; ")} }`;
    const body = bodyName(operation);
    return (
      comment(operation.summary ? `${operation.summary}.` : "", "  ") +
      `  ${operation.operationId}: {\n` +
      `    path: ${fields(inPath, "")};\n` +
      `    query: ${fields(inQuery, "?")};\n` +
      `    body: ${body ? typeName(body) : "undefined"};\n` +
      `    answer: ${answerName(operation)};\n` +
      `  };\n`
    );
  });
  return `/** The fields of each operation. */\nexport interface Operations {\n${entries.join("")}}\n`;
}

function operationTable(operations) {
  const rows = operations.map(
    ({ path, verb, operation, hasRequestId }) =>
      `  ${operation.operationId}: { verb: "${verb}", path: "${path}", hasRequestId: ${hasRequestId}, isStream: ${isStream(operation)} },\n`,
  );
  return `/** Where each operation is, whether a request id makes it safe to repeat, and whether its answer is a stream. */
export const OPERATIONS = {
${rows.join("")}} as const;
`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const words = process.argv.slice(2);
  const isPrint = words[0] === "--print";
  const source = words[isPrint ? 1 : 0];
  if (!source) {
    console.error("usage: node scripts/generate.mjs [--print] openapi.json");
    process.exit(2);
  }
  const text = generate(JSON.parse(readFileSync(source, "utf8")));
  if (isPrint) process.stdout.write(text);
  else writeFileSync(TARGET, text);
}
