/* The theme's search dialog has no name for those who hear the page. */
document.querySelectorAll(".md-search[role=dialog]").forEach((each) => each.setAttribute("aria-label", "Search"));
