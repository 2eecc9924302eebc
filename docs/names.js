// What the theme leaves out for screen readers and keyboards: names, and a stop of the Tab key where something scrolls.
const mend = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const bar of document.querySelectorAll(".md-code__nav")) bar.setAttribute("role", "presentation");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  }
};

new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();
