// What the page needs of the worker's modules, from the one function that holds them.
import parts from "./worker?function";

export const { everyRow, plain, plainLabel, pooled, rowEntropy, sees, siftedShare, size } = parts();
