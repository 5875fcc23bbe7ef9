import { defineConfig } from "vite";

// Names change with the content, so that a browser may keep the files for as long as it likes.
const names = {
  entryFileNames: "assets/page-[hash].js",
  chunkFileNames: "assets/[name]-[hash].js",
  assetFileNames: "assets/page-[hash].[ext]",
};

export default defineConfig({
  build: {
    outDir: "../paceline/view/page/bundle",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    rolldownOptions: { output: names },
  },
});
