/** Values of the API in the form in which callers see them: names without their collections, paths as strings, times as `Date`. */
export * from "./models/following.js";
export * from "./models/policy.js";
export * from "./models/sandboxes.js";
export * from "./models/service.js";
export * from "./models/tree.js";
