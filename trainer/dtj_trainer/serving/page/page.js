// The page of `dtj serve`: asks each model what it takes a picture for, and shows what the model saw.

import { Drawing } from "./drawing.js";

const MOST_AT_FIRST = 4; // So many models are chosen at the start.

const at = (id) => document.getElementById(id);

const state = {
  token: null,
  models: [],
  picture: null, // {blob, name} of the file or of the drawing
  waiting: [], // Files that were chosen, and that no model has been asked about.
  asking: null, // The AbortController of the requests that run.
};

// These functions make elements and texts. No text becomes markup.

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function tellProblem(text) {
  at("problem").textContent = text;
  at("problem").hidden = !text;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Requests.

class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function request(path, options = {}) {
  // The characters of a header are bytes. The server's token is text in UTF-8.
  const token = String.fromCharCode(...new TextEncoder().encode(state.token ?? ""));
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. If the picture is very large, the server may have refused it.");
  }
  if (answer.ok) return answer.json();
  throw new Refusal(answer.status, await refusalOf(answer));
}

async function refusalOf(answer) {
  const status = answer.status;
  if (status === 429) {
    const seconds = answer.headers.get("Retry-After") ?? "1";
    return `The server has no room for more requests (429). Ask again in ${seconds} s.`;
  }
  const told = await answer.json().catch(() => ({}));
  const message = told.message ?? answer.statusText;
  if (status === 413) return `The picture is too large (413): ${message}.`;
  if (status === 415) return `The file is neither PNG nor JPEG (415): ${message}.`;
  return `The server refuses (${status}): ${message}.`;
}

// The token comes from the address (…/#token=TOKEN), from which it is then removed, or from the form.

function takeTokenOfAddress() {
  const found = location.hash.match(/^#token=(.+)$/);
  if (!found) return false;
  try {
    state.token = decodeURIComponent(found[1]);
  } catch {
    state.token = found[1]; // A lone % is a part of the token.
  }
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

function askForToken() {
  tellProblem(state.token ? "The server refuses this token." : "");
  state.token = null;
  at("work").hidden = true;
  at("access").hidden = false;
  at("token").focus();
}

at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = at("token").value.trim();
  at("token").value = "";
  start();
});

// Models.

async function start() {
  try {
    const { models } = await request("models");
    const described = await Promise.all(
      models.map(({ modelName }) => request(`models/${encodeURIComponent(modelName)}`)),
    );
    state.models = described.flat();
  } catch (error) {
    if (error.status === 401) askForToken();
    else tellProblem(error.message);
    return;
  }
  tellProblem("");
  at("access").hidden = true;
  at("work").hidden = false;
  showModels();
}

function showModels() {
  const able = state.models.filter((model) => model.preprocessing);
  at("choices").replaceChildren(
    ...state.models.map((model) => {
      const chosen = made("input", {
        type: "checkbox",
        value: model.modelName,
        disabled: !model.preprocessing,
        checked: able.indexOf(model) >= 0 && able.indexOf(model) < MOST_AT_FIRST,
      });
      chosen.addEventListener("change", ask);
      const note = model.preprocessing ? "" : " (takes tensors, no pictures)";
      return made("label", {}, chosen, ` ${model.modelName}${note}`);
    }),
  );
  at("models").hidden = state.models.length < 2;
  if (!able.length) tellProblem("None of the server's models takes pictures.");
  const inverts = able[0]?.preprocessing.invert ?? false;
  at(inverts ? "dark" : "light").checked = true; // After the server's inversion, the drawing has the training's colours.
  drawing.recolour();
}

function chosenModels() {
  const names = new Set(Array.from(at("choices").querySelectorAll(":checked"), (box) => box.value));
  return state.models.filter((model) => names.has(model.modelName));
}

// Questions and answers.

async function ask() {
  state.asking?.abort(); // The answers to earlier requests would be about an earlier picture.
  at("ask").disabled = at("next").disabled = !state.picture;
  at("next").textContent = state.waiting.length ? `Next picture (${state.waiting.length} more)` : "Next picture";
  if (!state.picture) {
    at("answers").replaceChildren();
    at("told").textContent = "No picture yet.";
    return;
  }
  const asking = (state.asking = new AbortController());
  const asked = chosenModels().map((model) => ({ model, card: cardOf(model) }));
  at("answers").replaceChildren(...asked.map(({ card }) => card));
  at("told").textContent = asked.length ? `Asking about ${state.picture.name}…` : "No model is chosen.";
  const { blob, name } = state.picture;
  const told = await Promise.all(asked.map(({ model, card }) => askOne(model, card, blob, asking.signal)));
  if (!asking.signal.aborted && told.length) at("told").textContent = `${name}: ${told.join(" ")}`;
}

async function askOne(model, card, blob, signal) {
  const name = model.modelName;
  try {
    const path = `page/predictions/${encodeURIComponent(name)}`;
    const answer = await request(path, { method: "POST", body: blob, signal });
    showAnswer(card, answer);
    const [first] = answer.classes;
    return `${name} says ${nameOf(first)}, ${percent(first.probability)}.`;
  } catch (error) {
    if (signal.aborted) return "";
    if (error.status === 401) askForToken();
    fill(card, made("p", { className: "problem", textContent: error.message }));
    return `${name} has no answer. ${error.message}`;
  }
}

function cardOf(model) {
  // An earlier answer stays until the new one comes, so that the page does not jump.
  const label = `Answer of ${model.modelName}`;
  const earlier = Array.from(at("answers").children).find((card) => card.getAttribute("aria-label") === label);
  const card = earlier ?? made("article", {}, made("h3", { textContent: model.modelName }));
  card.setAttribute("aria-label", label);
  card.setAttribute("aria-busy", "true");
  return card;
}

function fill(card, ...content) {
  card.replaceChildren(card.firstElementChild, ...content); // The heading stays.
  card.removeAttribute("aria-busy");
}

const nameOf = (one) => one.label ?? `class ${one.class}`;

function showAnswer(card, answer) {
  const { size, channels, invert } = answer.preprocessing;
  const form = `${size.join(" × ")} pixels, ${channels === 1 ? "grey" : "in colour"}${invert ? ", inverted" : ""}`;
  const saw = made("img", { className: "saw", src: answer.saw, alt: `The picture as ${answer.modelName} saw it` });
  const classes = answer.classes.map((one) => {
    const bar = made("span", { className: "bar" });
    bar.style.width = `${100 * one.probability}%`;
    const track = made("span", { className: "track" }, bar);
    track.setAttribute("aria-hidden", "true");
    const texts = [nameOf(one), percent(one.probability)].map((textContent) => made("span", { textContent }));
    return made("li", {}, ...texts, track);
  });
  const list = made("ol", { className: "classes" }, ...classes);
  list.setAttribute("role", "list"); // Safari drops this role from lists whose numbers are not shown.
  const steps = answer.steps === null ? "" : `, after ${answer.steps} steps`;
  fill(
    card,
    made("figure", {}, saw, made("figcaption", { textContent: `What the model saw: ${form}` })),
    list,
    made("p", { className: "version", textContent: `Version ${answer.modelVersion}${steps}` }),
  );
}

// Picture files.

function showGiven() {
  const picture = at("given-picture");
  if (picture.src) URL.revokeObjectURL(picture.src);
  const file = state.picture?.blob instanceof File ? state.picture.blob : null;
  at("given").hidden = !file;
  if (!file) {
    picture.removeAttribute("src");
    return;
  }
  picture.src = URL.createObjectURL(file);
  picture.alt = `The file ${file.name}`;
  at("given-name").textContent = file.name;
}

function takeFiles(files) {
  const [first, ...others] = files;
  if (!first || at("work").hidden) return;
  drawing.clear();
  state.picture = { blob: first, name: first.name };
  state.waiting = others;
  showGiven();
  ask();
}

at("file").addEventListener("change", () => {
  takeFiles(at("file").files);
  at("file").value = ""; // So that the same file can be chosen again.
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault(); // Otherwise the browser leaves the page, and opens the file.
    at("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") takeFiles(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => takeFiles(event.clipboardData.files));

// The drawing.

const drawing = new Drawing(at("box"), at("pen"), at("light"), at("pen-says"), {
  shown: () => (at("undo").disabled = !drawing.lines.length),
  drawn: (blob) => {
    state.picture = blob && { blob, name: "Your drawing" };
    state.waiting = [];
    showGiven();
    ask();
  },
});

at("undo").addEventListener("click", () => {
  drawing.undo();
  if (!drawing.lines.length) at("box").focus(); // The button is disabled now, and would lose the focus.
});
for (const id of ["light", "dark"]) at(id).addEventListener("change", () => drawing.recolour());

at("ask").addEventListener("click", ask);
at("next").addEventListener("click", () => {
  const [file, ...others] = state.waiting;
  const drew = drawing.lines.length > 0;
  drawing.clear();
  state.picture = file ? { blob: file, name: file.name } : null;
  state.waiting = others;
  showGiven();
  ask();
  if (!file) at(drew ? "box" : "file").focus(); // The button is disabled now, and would lose the focus.
});

window.addEventListener("hashchange", () => takeTokenOfAddress() && start());
takeTokenOfAddress();
start();
