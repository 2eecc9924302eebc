// Builds each page as one HTML file without any address in it, and pins its own script and style by hash.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { build, defineConfig, minifySync, type LibraryOptions, type Plugin, type Rolldown } from "vite";
import { common } from "./src/words/common";
import { page } from "./src/words/page";

const hash = (text: string): string => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

/** What a page may do beyond running its own script and style. The report shows numbers and needs nothing else. */
const ACTS = ["style-src-attr 'unsafe-inline'", "img-src data: blob:", "worker-src blob:", "connect-src 'self'"];
const PAGES: Record<string, string[]> = { page: ACTS, typed: ACTS, report: [] };

function oneFile(name: string): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      let script = "";
      let style = "";
      for (const [file, part] of Object.entries(bundle)) {
        if (part.type === "chunk") script += part.code;
        else if (file.endsWith(".css")) style += String(part.source);
        if (!file.endsWith(".html")) delete bundle[file];
      }
      const page = bundle[`${name}.html`];
      if (page?.type !== "asset") throw new Error(`there is no ${name}.html in the build`);
      // what terser has shortened gets its names here: both together are smaller than either
      const named = minifySync(`${name}.js`, script, { module: true, compress: { target: "es2022" }, mangle: { toplevel: true }, codegen: { removeWhitespace: true } });
      if (named.errors.length) throw new Error(named.errors[0].message);
      script = named.code;
      // one word for both, which gzip finds more often
      script = script.replace(/\bconst (?=[\w$[{])/g, "let ");
      script = `\n${script.trim().replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--")}\n`;
      style = `\n${style.trim()}\n`;
      const policy = [
        "default-src 'none'",
        `script-src ${hash(script)}`,
        `style-src ${hash(style)}`,
        ...PAGES[name],
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const bare = String(page.source)
        .replace(/\s*<script[^>]*src=[^>]*><\/script>/g, "")
        .replace(/\s*<link[^>]*>/g, "");
      if (name === "page") this.emitFile({ type: "asset", fileName: "words.json", source: wordsBeside() });
      page.source = bare
        .replace("<!--headscope:policy-->", () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
        .replace("<!--headscope:style-->", () => `<style>${style}</style>`)
        .replace("<!--headscope:script-->", () => `<script type="module">${script}</script>`);
    },
  };
}

/**
 * `import parts from "./worker?function"`: a module, with all that it needs, as one function that returns its exports.
 * The page calls it, and a worker is started from the same function's text: the code is in the page once.
 */
const asFunction: Plugin = {
  name: "as-function",
  enforce: "pre",
  async resolveId(id, from) {
    if (!id.endsWith("?function")) return null;
    const found = await this.resolve(id.slice(0, -"?function".length), from);
    return found && `\0${found.id}?function`;
  },
  async load(id) {
    if (!id.startsWith("\0") || !id.endsWith("?function")) return null;
    const entry = id.slice(1, -"?function".length);
    this.addWatchFile(entry);
    const built = await build({
      configFile: false, logLevel: "silent",
      build: { write: false, minify: true, target: "es2022", lib: { entry, formats: ["iife"], name: "parts" } },
    });
    const [{ output }] = built as Rolldown.RolldownOutput[];
    return `export default function () { ${output[0].code}; return parts; }`;
  },
};

/** The sources of the page, without those of the report and of the encoder. */
const sources = (): string =>
  readdirSync("src", { recursive: true, encoding: "utf-8" })
    .filter((file) => /\.tsx?$/.test(file) && !/^(report|encoder|words)\b/.test(file))
    .map((file) => readFileSync(`src/${file}`, "utf-8"))
    .join("\n");

/** The places of the words whose names a build replaces by numbers: not of those that the page makes, or that may mean something else. */
function places(): Map<string, number> {
  const begin = [...new Set([...sources().matchAll(/`([a-z]+_)\$\{/g)].map(([, text]) => text))];
  return new Map(Object.keys(page).filter((name) => name.includes("_") && !begin.some((text) => name.startsWith(text))).map((name, n) => [name, n]));
}

/** Names of words are numbers in the page: each stood in it twice, and says nothing to a browser. */
const numbersForNames: Plugin = {
  name: "numbers-for-names",
  apply: "build",
  enforce: "pre",
  transform(code, id) {
    if (!/\/web\/src\/.*\.tsx?$/.test(id)) return null;
    const numbers = places();
    return code.replace(/"(\w+)"/g, (whole, name: string) => String(numbers.get(name) ?? whole));
  },
};

/** The page's words in all languages: not in its code, but data that Python embeds, by the names that its code has. */
function wordsBeside(): string {
  const numbers = places();
  const tables = ["en", "ja", "zh"].map((language, at): [string, Record<string, string>] => [
    language, Object.fromEntries(Object.entries({ ...common, ...page }).map(([name, said]) => [numbers.get(name) ?? name, said[at]])),
  ]);
  return JSON.stringify(Object.fromEntries(tables))
    .replace(/[<>&]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** What is no page: the notebook's widget, and the encoder, which a page with a model starts as a worker. */
const SCRIPTS = {
  widget: { entry: "src/widget.ts", formats: ["es"], fileName: () => "widget.js" },
  encoder: { entry: "src/encoder/index.ts", formats: ["iife"], name: "encoder", fileName: () => "encoder.js" },
} satisfies Record<string, LibraryOptions>;

/** One build for each page, and one for each script: `vite build --mode report`. The first empties the folder. */
export default defineConfig(({ mode }) => {
  if (mode in SCRIPTS) {
    return {
      build: {
        lib: SCRIPTS[mode as keyof typeof SCRIPTS],
        outDir: "../src/headscope/page/static",
        emptyOutDir: false,
        target: "es2022",
        reportCompressedSize: false,
      },
    };
  }
  const name = mode in PAGES ? mode : "page";
  return {
    oxc: { jsx: { runtime: "classic", pragma: "makeNode", pragmaFrag: "makeFragment" }, jsxInject: 'import { h as makeNode, Fragment as makeFragment } from "preact";' },
    plugins: [asFunction, ...(name === "report" ? [] : [numbersForNames]), oneFile(name)],
    build: {
      rolldownOptions: { input: `${name}.html` },
      outDir: "../src/headscope/page/static",
      emptyOutDir: name === "page",
      target: "es2022",
      cssTarget: ["chrome123", "firefox121", "safari17.5"],
      modulePreload: false,
      minify: "terser",
      terserOptions: { module: true, mangle: false, compress: { passes: 3, ecma: 2020, unsafe_arrows: true, lhs_constants: false, unsafe: true } },
      cssMinify: "esbuild",
      cssCodeSplit: false,
      assetsInlineLimit: 100_000_000,
      reportCompressedSize: false,
    },
  };
});
