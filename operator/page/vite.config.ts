import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

const licences = ["preact", "uplot"].map(
  (name) => `/*! ${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8")}*/\n`,
);

// Names without a digest: `dtj ui` serves three files, and a test compares their bytes with the committed ones.
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        postBanner: (chunk) => (chunk.fileName.endsWith(".js") ? licences.join("") : ""),
        entryFileNames: "page.js",
        assetFileNames: "page[extname]",
        codeSplitting: false,
      },
    },
  },
});
