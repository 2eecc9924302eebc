/// <reference types="vite/client" />
declare module "*/worker?function" {
  const parts: () => typeof import("./trace/worker");
  export default parts;
}
