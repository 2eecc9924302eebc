// Live pages in frames follow the colours that the reader chose for the site.
const frames = () => document.querySelectorAll("figure.live iframe");

function follow() {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of frames()) {
    const [file, state] = (frame.dataset.first ??= frame.getAttribute("src")).split("#");
    const address = `${file}#${state ? `${state}&` : ""}theme=${theme}`;
    if (frame.getAttribute("src") !== address) frame.setAttribute("src", address);
  }
}

follow();
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
