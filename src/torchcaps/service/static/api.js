// The page about the API, from its own description; nothing is loaded from elsewhere.

const main = document.getElementById("endpoints");

const example = document.getElementById("example");
example.textContent = example.textContent.replace("ADDRESS", location.origin);

function element(name, text = "", ...children) {
  const made = document.createElement(name);
  made.textContent = text;
  made.append(...children);
  return made;
}

function nameOf(reference) {
  return reference.split("/").at(-1);
}

// What a schema says in a few words: types, names of other schemas, bounds.
function words(schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(words).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  let said = schema.type ?? "anything";
  if (schema.contentMediaType) said = `${schema.contentMediaType} in ${schema.contentEncoding}`;
  if (schema.type === "array") said = schema.prefixItems ? `[${schema.prefixItems.map(words).join(", ")}]` : `list of ${words(schema.items)}`;
  const bounds = [];
  for (const [key, sign] of [["minimum", "≥"], ["maximum", "≤"], ["exclusiveMaximum", "<"]]) {
    if (schema[key] !== undefined) bounds.push(`${sign} ${schema[key]}`);
  }
  const most = schema.maxLength ?? schema.maxItems;
  if (most !== undefined) bounds.push(`at most ${most} ${schema.type === "array" ? "entries" : "characters"}`);
  return bounds.length ? `${said} (${bounds.join(", ")})` : said;
}

function table(schema, caption) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const required = schema.required?.includes(name);
    const note = [required ? "" : "optional", field.default !== undefined && field.default !== null ? `default ${JSON.stringify(field.default)}` : "", field.description ?? ""];
    return element("tr", "", element("th", "", element("code", name)), element("td", words(field)), element("td", note.filter(Boolean).join("; ")));
  });
  rows.forEach((row) => row.firstChild.setAttribute("scope", "row"));
  const head = element("tr", "", ...["field", "type", ""].map((title) => element("th", title)));
  const box = element("div", "", element("table", "", element("caption", caption), element("thead", "", head), element("tbody", "", ...rows)));
  box.className = "scroll";
  return box;
}

// A schema and all others that it mentions, each once.
function mentioned(schema, schemas, found = new Set()) {
  for (const [, name] of JSON.stringify(schema ?? {}).matchAll(/"#\/components\/schemas\/(\w+)"/g)) {
    if (!found.has(name)) {
      found.add(name);
      mentioned(schemas[name], schemas, found);
    }
  }
  return [...found];
}

function endpoint(path, method, operation, schemas) {
  const heading = element("h2");
  const verb = element("span", method.toUpperCase());
  verb.className = "method";
  heading.append(verb, " ", element("code", path));
  const parts = [heading, element("p", operation.description ?? operation.summary ?? "")];
  for (const parameter of operation.parameters ?? []) {
    parts.push(element("p", `Query: ${parameter.name}, ${words(parameter.schema)}${parameter.required ? "" : ", optional"}`));
  }
  const asked = operation.requestBody?.content["application/json"]?.schema;
  for (const name of mentioned(asked, schemas)) {
    parts.push(table(schemas[name], `${name}: ${schemas[name].description ?? "request"}`));
  }
  const answered = operation.responses["200"]?.content?.["application/json"]?.schema;
  for (const name of mentioned(answered, schemas)) {
    parts.push(table(schemas[name], `${name}: ${schemas[name].description ?? "answer"}`));
  }
  return element("section", "", ...parts);
}

try {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(`/openapi.json answered ${response.status}`);
  const description = await response.json();
  const schemas = description.components.schemas;
  const sections = [];
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) sections.push(endpoint(path, method, operation, schemas));
  }
  const first = Object.values(Object.values(description.paths)[0])[0];
  const rows = Object.entries(first.responses)
    .filter(([status]) => Number(status) >= 400)
    .map(([status, refusal]) => element("tr", "", element("th", status), element("td", refusal.description)));
  const refusals = element("section", "", element("h2", "Refusals"), element("table", "", element("tbody", "", ...rows)));
  main.replaceChildren(...sections, refusals);
} catch (error) {
  main.replaceChildren(element("p", `The description could not be read: ${error.message}`));
} finally {
  main.setAttribute("aria-busy", "false");
}
