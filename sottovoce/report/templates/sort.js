for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[at].dataset.value;
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x !== undefined && y !== undefined) return (down ? y - x : x - y) || 0;
        if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
        const order = a.cells[at].textContent.localeCompare(b.cells[at].textContent);
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
