"use strict";
// What htmx does not do by itself: say that the console is away, ask nothing for a hidden page, and reload a page
// whose answer is another one (the person was signed out).
const lost = () => document.getElementById("lost");
for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
  document.addEventListener(name, () => { lost().hidden = false; });
}
document.addEventListener("htmx:beforeRequest", (event) => { if (document.hidden) event.preventDefault(); });
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status !== 200) return;
  lost().hidden = true;
  if (!event.detail.serverResponse.includes('hx-get="')) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});
