// Writes the reference of the TypeScript SDK as Markdown, from its doc comments: node scripts/reference.mjs FILE
// Fails if an exported class, function or interface, or a public method, has no doc comment.
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import ts from "typescript";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const { config } = ts.readConfigFile(join(root, "tsconfig.json"), ts.sys.readFile);
const { options } = ts.parseJsonConfigFileContent(config, ts.sys, root);
const program = ts.createProgram([join(root, "src/index.ts")], { ...options, noEmit: true });
const checker = program.getTypeChecker();
const lines = ["# Reference of the TypeScript SDK", ""];
const undocumented = [];

function comment(symbol, name) {
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker));
  if (!text) undocumented.push(name);
  return text;
}

function isHidden(declaration) {
  const flags = ts.getCombinedModifierFlags(declaration);
  return (flags & (ts.ModifierFlags.Private | ts.ModifierFlags.Protected)) !== 0;
}

/** The signature of a declaration, without its body. */
function signature(declaration) {
  const text = declaration.getText();
  if (ts.isMethodDeclaration(declaration) || ts.isFunctionDeclaration(declaration)) {
    return declaration.body ? text.slice(0, declaration.body.getStart() - declaration.getStart()).trim() : text;
  }
  if (ts.isGetAccessor(declaration)) return text.slice(0, declaration.body.getStart() - declaration.getStart()).trim();
  return text.replace(/ = .*$/s, "").replace(/;$/, "");
}

function addMembers(type, name) {
  for (const member of type.members ?? []) {
    if (!member.name || isHidden(member) || ts.isComputedPropertyName(member.name)) continue;
    const key = member.name.getText();
    const symbol = checker.getSymbolAtLocation(member.name);
    const isSimple = ts.isPropertySignature(member) || ts.isPropertyDeclaration(member);
    const text = ts.displayPartsToString(symbol.getDocumentationComment(checker));
    if (!text && !isSimple) undocumented.push(`${name}.${key}`);
    if (isSimple) {
      lines.push(`- \`${signature(member)}\`${text ? `: ${text.replaceAll("\n", " ")}` : ""}`);
    } else {
      lines.push("", `#### \`${key}\``, "", "```ts", signature(member), "```", "", text);
    }
  }
  lines.push("");
}

function add(symbol, prefix = "") {
  const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
  const declaration = target.declarations?.[0];
  const name = `${prefix}${symbol.name}`;
  if (!declaration) return;
  if (ts.isSourceFile(declaration)) {
    // The types of the low layer are those of the OpenAPI document.
    if (symbol.name === "api") return;
    lines.push(`## \`${name}\``, "");
    for (const one of checker.getExportsOfModule(target)) add(one, `${name}.`);
    return;
  }
  lines.push(`### \`${name}\``, "");
  if (ts.isClassDeclaration(declaration) || ts.isInterfaceDeclaration(declaration)) {
    lines.push(comment(target, name), "");
    addMembers(declaration, name);
  } else if (ts.isFunctionDeclaration(declaration)) {
    lines.push("```ts", signature(declaration), "```", "", comment(target, name), "");
  } else if (ts.isTypeAliasDeclaration(declaration)) {
    lines.push("```ts", declaration.getText(), "```", "");
  } else {
    lines.push(ts.displayPartsToString(target.getDocumentationComment(checker)), "");
  }
}

const source = program.getSourceFile(join(root, "src/index.ts"));
const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(source));
for (const symbol of exported.sort((one, other) => (one.name < other.name ? -1 : 1))) add(symbol);
const file = process.argv[2];
mkdirSync(dirname(file), { recursive: true });
writeFileSync(file, lines.join("\n"));
for (const name of undocumented) console.error(`no doc comment: ${name}`);
process.exitCode = undocumented.length > 0 ? 1 : 0;
