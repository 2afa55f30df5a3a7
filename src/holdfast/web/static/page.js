// What every page does, whether it updates itself or not: switch the theme, show that the next page is loading, send
// each form once.
const SLOW_MS = 200;
const YEAR_S = 365 * 24 * 3600;
const themes = document.getElementById("themes");

// Stores the choice in a cookie: the server renders the next page with it, so that no page appears in another theme.
function chooseTheme(name) {
  const chosen = name !== "system";
  const age = chosen ? YEAR_S : 0;
  document.cookie = `holdfast_theme=${name}; path=${themes.dataset.path}; max-age=${age}; samesite=lax`;
  if (chosen) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  document.querySelector('meta[name="color-scheme"]').content = chosen ? name : "light dark";
  for (const it of themes.querySelectorAll("button")) it.setAttribute("aria-pressed", String(it.value === name));
}

if (themes) {
  themes.hidden = false;
  themes.addEventListener("click", (event) => {
    if (event.target.matches("button")) chooseTheme(event.target.value);
  });
}

let slow = null;

function startLoading() {
  clearTimeout(slow);
  slow = setTimeout(() => { document.body.dataset.loading = "1"; }, SLOW_MS);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const opensHere = link && !link.target && event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey);
  if (!opensHere || event.defaultPrevented || link.origin !== location.origin) return;
  if (link.pathname + link.search !== location.pathname + location.search || !link.hash) startLoading();
});

document.addEventListener("submit", (event) => {
  if (event.defaultPrevented) return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
  startLoading();
});

// A page that the browser kept comes back as it was left.
addEventListener("pageshow", () => {
  clearTimeout(slow);
  delete document.body.dataset.loading;
  for (const form of document.forms) delete form.dataset.sent;
});
