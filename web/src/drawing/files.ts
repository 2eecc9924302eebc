// Downloads from a page: saving, and escaping of CSV cells and SVG text.

/** Save a file as a download. */
export function download(content: BlobPart, type: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A part of a file's name: the last part of a model's name, without characters that file systems reject. */
export const plainPart = (name: string): string => name.split(/[\\/]/).pop()!.replace(/[^\w.-]+/g, "-") || "headscope";

/** A cell of CSV, quoted and protected from being run as a formula. src/headscope/screens/tables.py has the same rule. */
export const csvCell = (value: string): string => `"${(/^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : value).replace(/"/g, '""')}"`;

/** Text of an SVG that is written as a string; characters not allowed in XML are replaced. */
export const escaped = (text: string): string =>
  // eslint-disable-next-line no-control-regex
  text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
