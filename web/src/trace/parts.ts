// What the page needs of the worker's modules, from the one function that holds them.
import parts from "./worker?function";

export const { columnsOf, entropy, everyRow, plain, plainLabel, poolRow, sees, siftedShare, size } = parts();
