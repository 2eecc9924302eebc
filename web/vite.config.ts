// Builds the page as one HTML file without any address in it, and pins its own script and style by hash.
import { createHash } from "node:crypto";
import { defineConfig, type Plugin } from "vite";

const hash = (text: string): string => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      let script = "";
      let style = "";
      for (const [name, part] of Object.entries(bundle)) {
        if (part.type === "chunk") script += part.code;
        else if (name.endsWith(".css")) style += String(part.source);
        if (!name.endsWith(".html")) delete bundle[name];
      }
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("there is no index.html in the build");
      script = `\n${script.trim().replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--")}\n`;
      style = `\n${style.trim()}\n`;
      const policy = [
        "default-src 'none'",
        `script-src ${hash(script)}`,
        `style-src ${hash(style)}`,
        "style-src-attr 'unsafe-inline'",
        "img-src data: blob:",
        "worker-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const bare = String(page.source)
        .replace(/\s*<script[^>]*src=[^>]*><\/script>/g, "")
        .replace(/\s*<link[^>]*>/g, "");
      page.source = bare
        .replace("<!--headscope:policy-->", () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
        .replace("<!--headscope:style-->", () => `<style>${style}</style>`)
        .replace("<!--headscope:script-->", () => `<script type="module">${script}</script>`);
      page.fileName = "page.html";
    },
  };
}

export default defineConfig({
  plugins: [oneFile()],
  build: {
    outDir: "../src/headscope/view/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 100_000_000,
    reportCompressedSize: false,
  },
  worker: { format: "iife" },
});
