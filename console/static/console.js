// What a page does without asking the server: the menu of small screens, charts, and polls that rest while unseen.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest(".menu-button");
  if (!button) return;
  const menu = document.getElementById(button.getAttribute("aria-controls"));
  button.setAttribute("aria-expanded", String(menu.classList.toggle("open")));
});

function isPoll(detail) {
  return Boolean(detail.requestConfig ? detail.requestConfig.headers["X-Console-Poll"] : detail.headers["X-Console-Poll"]);
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const target = event.detail.elt;
  const isBusy = target.contains(document.activeElement) && target !== document.activeElement;
  const isOpen = target.querySelector("details[open]") !== null;
  if (isPoll(event.detail) && (document.hidden || isBusy || isOpen)) event.preventDefault();
});

function setOffline(isOffline) {
  document.getElementById("offline").hidden = !isOffline;
}
document.addEventListener("htmx:sendError", () => setOffline(true));
document.addEventListener("htmx:timeout", () => setOffline(true));
document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) setOffline(false); });
document.addEventListener("htmx:responseError", (event) => { if (event.detail.xhr.status === 503) setOffline(true); });

// A chart grows by a sample each time its page shows newer numbers: data-at, and data-NAME for each of its lines.
const charts = new Map();
const POINTS_MAX = 720;
const SPAN_MIN_S = 120;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function humane(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B/s", "KiB/s", "MiB/s", "GiB/s"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return value.toFixed(value < 10 && unit > 0 ? 1 : 0) + " " + units[unit];
}

// From the samples themselves: for one alone the library offers a span of years.
function span(plot) {
  const times = plot.data[0];
  const high = times.length ? times[times.length - 1] : Date.now() / 1000;
  return [Math.min(times.length ? times[0] : high, high - SPAN_MIN_S), high];
}

function drawChart(place) {
  const sample = document.getElementById(place.dataset.sample);
  if (!sample) return;
  const names = place.dataset.lines.split(",");
  let chart = charts.get(place.id);
  if (!chart || chart.place !== place) {
    const data = [[], ...names.map(() => [])];
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 } };
    const plot = new uPlot({
      width: place.clientWidth, height: 200, data,
      axes: [axis, { ...axis, size: 80, values: (_, ticks) => ticks.map(humane) }],
      scales: { x: { range: span }, y: { range: (_, low, high) => [0, Math.max(high, 1024)] } },
      series: [{}, ...names.map((name, at) => ({
        label: name, stroke: colour(at ? "--warn" : "--accent"), width: 2, dash: at ? [6, 3] : undefined,
        value: (_, value) => humane(value),
      }))],
    }, data, place);
    chart = { place, plot, data, last: "" };
    place.plot = plot;
    charts.set(place.id, chart);
  }
  if (sample.dataset.at === chart.last) return;
  chart.last = sample.dataset.at;
  chart.data[0].push(Number(sample.dataset.at));
  names.forEach((name, at) => chart.data[at + 1].push(sample.dataset[name] === "" ? null : Number(sample.dataset[name])));
  if (chart.data[0].length > POINTS_MAX) chart.data.forEach((line) => line.shift());
  chart.plot.setData(chart.data);
}

function drawCharts() { document.querySelectorAll(".chart").forEach(drawChart); }
document.addEventListener("DOMContentLoaded", drawCharts);
document.addEventListener("htmx:afterSettle", drawCharts);
window.addEventListener("resize", () => charts.forEach((one) => one.plot.setSize({ width: one.place.clientWidth, height: 200 })));

// A live list is cut at its far end, so that a page that is open for a day stays small.
document.addEventListener("htmx:afterSettle", () => {
  document.querySelectorAll("table[data-rows-max]").forEach((list) => {
    const rows = list.querySelectorAll("tbody > tr");
    for (let at = Number(list.dataset.rowsMax); at < rows.length; at += 1) rows[at].remove();
    Array.from(list.tBodies).filter((body) => body.rows.length === 0).forEach((body) => body.remove());
  });
});

// Stop: a search or a tail asks for nothing more, and what was asked is broken off.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-stop]");
  if (!button) return;
  const place = button.closest("[hx-post]");
  htmx.trigger(place, "htmx:abort");
  const text = document.createElement(place.tagName);
  text.innerHTML = place.tagName === "TR" ? '<td colspan="5"></td>' : "";
  (text.firstElementChild || text).textContent = "Stopped.";
  place.replaceWith(text);
});
