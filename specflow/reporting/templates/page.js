(function () {
  var css = function (n) { return getComputedStyle(document.documentElement).getPropertyValue(n).trim(); };
  function draw() {
    var ink = css("--ink"), soft = css("--soft"), grid = css("--grid"), card = css("--card");
    var narrow = window.innerWidth < 720;
    document.querySelectorAll("[data-figure]").forEach(function (el) {
      var spec = JSON.parse(document.getElementById(el.id + "-spec").textContent), layout = spec.layout;
      spec.data.forEach(function (t) {
        if (t.line && t.line.color === "ink") { t.line.color = ink; t.marker = Object.assign({}, t.marker, { color: ink }); }
        if (t.type === "bar") t.marker = Object.assign({ line: { width: 0 } }, t.marker);
      });
      var axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true };
      var bars = spec.data[0].type === "bar", flat = spec.data[0].orientation === "h";
      layout.xaxis = Object.assign({}, axis, { showgrid: !bars || flat }, layout.xaxis); layout.yaxis = Object.assign({}, axis, { showgrid: !flat }, layout.yaxis);
      Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", bargap: 0.35,
        font: { family: "system-ui,-apple-system,Segoe UI,Roboto,sans-serif", size: narrow ? 11 : 12, color: soft },
        margin: { l: 48, r: 14, t: layout.showlegend === false ? 14 : 34, b: layout.xaxis.title ? 44 : 26 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
        hoverlabel: { bgcolor: card, bordercolor: grid, font: { color: ink } } });
      Plotly.react(el, spec.data, layout, { displayModeBar: false, responsive: true });
    });
  }
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
