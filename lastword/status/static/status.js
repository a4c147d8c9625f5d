// Live updates: every five seconds the page is fetched and its content replaced; focus and scroll positions are kept.
"use strict";
const live = document.getElementById("live");
async function refresh() {
  if (!live.checked || document.hidden || document.activeElement.closest("main form")) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = document.getElementById("main");
    const regions = [...main.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]);
    const focused = document.activeElement;
    const [region, link] = [focused.getAttribute("aria-label"), focused.getAttribute("href")];
    main.replaceChildren(...document.importNode(fresh.getElementById("main"), true).childNodes);
    document.title = fresh.title;
    for (const [label, left] of regions) {
      const found = [...main.querySelectorAll(".scroll")].find((one) => one.getAttribute("aria-label") === label);
      if (found) found.scrollLeft = left;
    }
    const again = [...main.querySelectorAll("a, .scroll")].find(
      (one) => (region && one.getAttribute("aria-label") === region) || (link && one.getAttribute("href") === link));
    if (again && !document.contains(focused)) again.focus({ preventScroll: true });
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
  }
}
setInterval(refresh, 5000);
