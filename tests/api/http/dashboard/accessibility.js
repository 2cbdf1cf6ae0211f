// What is wrong with a page for who reads it by keyboard, by voice, enlarged or in the dark, as a
// list of words. Contrast: 4.5, of large letters 3 (WCAG 2.2, 1.4.3).
() => {
  const wrong = [];
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  function told(element) {
    const name = element.tagName.toLowerCase() + (element.id ? `#${element.id}` : "");
    return `${name}.${element.getAttribute("class") || ""} "${(element.textContent || "").trim().slice(0, 40)}"`;
  }

  function shown(element) {
    return element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length;
  }

  // Red, green, blue (0 to 255) and opacity (0 to 1) of any colour that CSS can compute.
  function parts(colour) {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = brush.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  }

  function over(above, below) {
    return [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3])).concat(1);
  }

  function ground(element) {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const colour = parts(getComputedStyle(each).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, above) => over(above, below), [255, 255, 255, 1]);
  }

  function luminance([red, green, blue]) {
    const [r, g, b] = [red, green, blue].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function contrast(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }

  function checkContrast(element) {
    const style = getComputedStyle(element);
    const below = ground(element);
    const letters = over(parts(style.color), below);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    const found = contrast(letters, below);
    if (found < (large ? 3 : 4.5)) wrong.push(`contrast ${found.toFixed(2)}: ${told(element)}`);
  }

  const text = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (text.nextNode()) {
    const element = text.currentNode.parentElement;
    const said = text.currentNode.textContent.trim();
    if (!said || seen.has(element) || !shown(element)) continue;
    seen.add(element);
    if (element.closest("title, script, style, option, .unseen, .skip")) continue;
    checkContrast(element);
  }

  function accessibleName(element) {
    const labels = [...(element.labels || [])].map((label) => label.textContent);
    const by = (element.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
    const others = by.map((id) => document.getElementById(id)?.textContent || "");
    const pictures = [...element.querySelectorAll("img")].map((picture) => picture.alt);
    const own = element.matches("input, select, textarea") ? "" : element.textContent;
    return [element.getAttribute("aria-label"), ...others, ...labels, own, ...pictures]
      .filter(Boolean).join(" ").trim();
  }

  const controls = "a[href], button, summary, input:not([type=hidden]), select, textarea";
  for (const control of document.querySelectorAll(controls)) {
    if (!accessibleName(control)) wrong.push(`no name: ${control.outerHTML.slice(0, 80)}`);
    if (shown(control) && control.tabIndex < 0) wrong.push(`no key reaches ${told(control)}`);
  }

  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown);
  const levels = headings.map((heading) => Number(heading.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push(`first headings: ${levels}`);
  levels.forEach((level, at) => {
    if (level > (at ? levels[at - 1] : 0) + 1) wrong.push(`skips a level: ${told(headings[at])}`);
  });

  for (const cell of document.querySelectorAll("th")) {
    if (!cell.hasAttribute("scope")) wrong.push(`no scope: ${told(cell)}`);
    if (!cell.textContent.trim()) wrong.push(`an empty heading in ${told(cell.closest("table"))}`);
  }
  for (const picture of document.querySelectorAll("img:not([alt]), canvas:not([aria-label])")) {
    wrong.push(`no words: ${picture.outerHTML.slice(0, 80)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((each, at) => ids.indexOf(each) !== at))) wrong.push(`twice: #${id}`);
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title.trim()) wrong.push("no title");
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) wrong.push(`${scrollWidth} pixels wide on a screen of ${clientWidth}`);
  return wrong;
}
