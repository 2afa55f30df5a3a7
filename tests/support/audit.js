// What is wrong with the page at hand, as sentences: names for those who can't see, contrast for those who see badly,
// an order of focus that is the order of reading. Runs in the browser, on computed styles.
() => {
  const findings = [];
  const told = (it) => `<${it.tagName.toLowerCase()}${it.id ? ` #${it.id}` : ""}${it.className?.length ? ` .${it.className}` : ""}> ${(it.textContent || "").trim().slice(0, 40)}`;
  const shown = (it) => it.checkVisibility({ visibilityProperty: true }) && it.getClientRects().length > 0;

  function name(it) {
    const by = (it.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
    const labels = [...(it.labels ?? [])].map((label) => label.textContent).join(" ");
    const images = [...it.querySelectorAll?.("img[alt]") ?? []].map((image) => image.alt).join(" ");
    const written = it.matches("input, select, textarea") ? "" : `${it.textContent} ${images}`;
    return (by.trim() || it.getAttribute("aria-label") || labels || written || it.title || "").trim();
  }

  for (const it of document.querySelectorAll("a[href], button, summary, input:not([type=hidden]), select, textarea, [role=region], [role=img], nav, svg:not([aria-hidden]), progress, table")) {
    if (shown(it) && !name(it)) findings.push(`no name: ${told(it)}`);
  }
  for (const it of document.querySelectorAll("img")) if (!it.hasAttribute("alt")) findings.push(`no alt: ${it.src}`);
  const ids = [...document.querySelectorAll("[id]")].map((it) => it.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) findings.push(`twice the id ${id}`);
  for (const it of document.querySelectorAll("[aria-labelledby], label[for]")) {
    for (const id of (it.getAttribute("aria-labelledby") ?? it.htmlFor).split(" ")) {
      if (!document.getElementById(id)) findings.push(`refers to nothing, ${id}: ${told(it)}`);
    }
  }
  if (!document.documentElement.lang) findings.push("no language");
  if (!document.title.trim()) findings.push("no title");
  if (document.querySelectorAll("main").length !== 1) findings.push("not one main part");
  if (document.querySelectorAll("h1").length !== 1) findings.push("not one h1");
  let level = 1;
  for (const it of document.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(it.tagName[1]);
    if (own > level + 1) findings.push(`skips a level: ${told(it)}`);
    level = own;
  }

  const parts = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((value, at) => value * a + under[at] * (1 - a));
  function ground(it) {
    const layers = [];
    for (let at = it; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      if ((colour[3] ?? 1) === 1) break;
    }
    const base = matchMedia("(prefers-color-scheme: dark)").matches ? [20, 24, 27] : [246, 247, 248];
    return layers.reverse().reduce((under, colour) => over(colour, under), base);
  }
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  const luminance = (colour) => { const [r, g, b] = light(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }
  const seen = new Set();
  for (const it of document.querySelectorAll("body *")) {
    const writes = [...it.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!writes || !shown(it) || it.closest(".hidden, title, option")) continue;
    const style = getComputedStyle(it);
    const drawn = it instanceof SVGElement;
    const box = drawn ? it.parentElement.querySelector("rect.box") : null;
    const under = box ? parts(getComputedStyle(box).fill) : ground(drawn ? it.ownerSVGElement.parentElement : it);
    const size = parseFloat(style.fontSize);
    const wanted = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const has = contrast(over(parts(drawn ? style.fill : style.color), under), under);
    const told_once = `${it.tagName}.${it.className?.baseVal ?? it.className}`;
    if (has < wanted && !seen.has(told_once)) {
      seen.add(told_once);
      findings.push(`contrast ${has.toFixed(2)} of ${wanted}: ${told(it)}`);
    }
  }
  for (const it of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (shown(it) && contrast(parts(getComputedStyle(it).borderTopColor), ground(it)) < 3) findings.push(`faint edge: ${told(it)}`);
  }
  for (const it of document.querySelectorAll("rect.bar, polyline.line, rect.box, .dot")) {
    const style = getComputedStyle(it);
    const colour = it.matches(".dot") ? style.backgroundColor : it.matches(".bar") && style.stroke === "none" ? style.fill : style.stroke;
    const holder = it instanceof SVGElement ? it.ownerSVGElement.parentElement : it.parentElement;
    const under = ground(holder);
    const [r, g, b, a = 1] = parts(colour);
    const has = contrast(over([r, g, b, a * Number(style.opacity)], under), under);
    const told_once = `${it.tagName}.${it.className?.baseVal ?? it.className}`;
    if (has < 3 && !seen.has(told_once)) { seen.add(told_once); findings.push(`hardly seen, ${has.toFixed(2)}: ${told_once}`); }
  }
  for (const it of document.querySelectorAll("[tabindex]")) if (it.tabIndex > 0) findings.push(`jumps the order: ${told(it)}`);
  for (const it of document.querySelectorAll("*")) {
    const style = getComputedStyle(it);
    const scrolls = /auto|scroll/.test(style.overflowX) && it.scrollWidth > it.clientWidth + 1;
    if (shown(it) && scrolls && it.tabIndex < 0 && !it.querySelector("a[href], button, input, [tabindex='0']")) {
      findings.push(`can't be scrolled by keys: ${told(it)}`);
    }
  }
  return findings;
}
