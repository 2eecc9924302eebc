// What the page needs of the worker's modules, from the one function that holds them.
import parts from "./worker?function";

export const { entropy, everyRow, plain, plainLabel, pooled, sees, siftedShare, size } = parts();
