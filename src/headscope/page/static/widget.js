function e(e) {
	let t = document.createElement("canvas").getContext("2d", { willReadFrequently: !0 }), n = e;
	for (; t && n;) {
		t.clearRect(0, 0, 1, 1), t.fillStyle = getComputedStyle(n).backgroundColor, t.fillRect(0, 0, 1, 1);
		let [e, r, i, a] = t.getImageData(0, 0, 1, 1).data;
		if (a > 127) return .2126 * e + .7152 * r + .0722 * i < 128 ? "dark" : "light";
		let o = n.getRootNode();
		n = n.parentElement ?? (o instanceof ShadowRoot ? o.host : null);
	}
	return null;
}
var t = (e) => typeof e == "number" && Number.isInteger(e), n = (e) => Array.isArray(e) && e.length === 4 && e.every((e, n) => t(e) || n > 1 && e === null);
function r({ model: r, el: i }) {
	let a = document.createElement("iframe");
	a.setAttribute("sandbox", "allow-scripts allow-downloads"), a.allow = "clipboard-write", a.title = String(r.get("_title")), a.style.cssText = `width:100%;height:${Number(r.get("height"))}px;border:0;display:block`;
	let o = e(i);
	a.name = "headscope:" + [r.get("state"), o && `around=${o}`].filter(Boolean).join("&"), a.srcdoc = String(r.get("_page"));
	let s = (e) => a.contentWindow?.postMessage({ headscope: e }, "*"), c = ({ source: e, data: i }) => {
		if (e !== a.contentWindow || typeof i?.headscope != "object" || !i.headscope) return;
		let { ready: c, id: l, request: u, state: d, selection: f } = i.headscope;
		if (c) return s({
			selection: r.get("selection"),
			around: o
		});
		if (t(l)) return r.send({
			id: l,
			request: u
		});
		typeof d == "string" && d.length <= 2e4 && r.set("state", d), n(f) && r.set("selection", f), r.save_changes();
	}, l = () => s({ selection: r.get("selection") }), u = () => s({ state: r.get("state") }), d = () => {
		a.style.height = `${Number(r.get("height"))}px`;
	}, f = (e, n) => {
		let { id: r, error: i } = e ?? {}, a = n?.[0], o = a && a.buffer.slice(a.byteOffset, a.byteOffset + a.byteLength);
		t(r) && s({
			id: r,
			bytes: o,
			error: i
		});
	}, p = () => setTimeout(() => {
		let t = e(i);
		t !== o && (o = t, s({ around: o }));
	}, 300);
	addEventListener("message", c), r.on("change:selection", l), r.on("change:state", u), r.on("change:height", d), r.on("msg:custom", f);
	let m = new MutationObserver(p);
	for (let e of [document.documentElement, document.body]) m.observe(e, { attributes: !0 });
	let h = matchMedia("(prefers-color-scheme: dark)");
	return h.addEventListener("change", p), i.replaceChildren(a), p(), () => {
		removeEventListener("message", c), r.off("change:selection", l), r.off("change:state", u), r.off("change:height", d), r.off("msg:custom", f), m.disconnect(), h.removeEventListener("change", p);
	};
}
var i = { render: r };
export { i as default };
