// What the model in the page refuses, in words that the page shows.

export class Refused extends Error {}
