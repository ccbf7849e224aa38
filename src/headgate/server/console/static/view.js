// A page is a function that says what is to be seen; `patch` changes the document to match. Text is only ever text.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "line", "rect", "circle", "g", "text", "polyline", "polygon", "title"]);
const AS_PROPERTY = new Set(["value", "checked", "disabled", "selected", "open"]);

/** A node: h("button", {onclick}, "Pause"). Children may be nested lists; null and false are nothing. */
export function h(tag, props, ...children) {
  return {
    tag,
    props: props || {},
    children: children.flat(Infinity).filter((c) => c != null && c !== false && c !== true),
  };
}

/** Makes the children of an element be these. */
export function patch(parent, children) {
  const wanted = [children].flat(Infinity).filter((c) => c != null && c !== false && c !== true);
  const keyed = new Map();
  for (const child of parent.childNodes) if (child._key != null) keyed.set(child._key, child);
  let at = parent.firstChild;
  for (const vnode of wanted) {
    const key = vnode.props?.key;
    let node = key != null ? keyed.get(key) : at && at._key == null ? at : null;
    if (node && !isAlike(node, vnode)) node = null;
    if (node) {
      keyed.delete(key);
      if (node === at) at = at.nextSibling;
      else parent.insertBefore(node, at);
      update(node, vnode);
    } else {
      parent.insertBefore(make(vnode, parent), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function isAlike(node, vnode) {
  return typeof vnode === "object" ? node._tag === vnode.tag && node._key === vnode.props.key : node.nodeType === 3;
}

function make(vnode) {
  if (typeof vnode !== "object") return document.createTextNode(String(vnode));
  const node = SHAPES.has(vnode.tag) ? document.createElementNS(SVG, vnode.tag) : document.createElement(vnode.tag);
  node._tag = vnode.tag;
  node._key = vnode.props.key;
  node._props = {};
  update(node, vnode);
  if (vnode.props.onmake) vnode.props.onmake(node);
  return node;
}

function update(node, vnode) {
  if (typeof vnode !== "object") {
    if (node.data !== String(vnode)) node.data = String(vnode);
    return;
  }
  const was = node._props;
  const props = vnode.props;
  if (!props.opaque) patch(node, vnode.children); // (what is inside of the others is their own)
  for (const name of new Set([...Object.keys(was), ...Object.keys(props)])) {
    if (name === "key" || name === "onmake" || name === "opaque") continue;
    const value = props[name];
    if (name.startsWith("on")) node[name] = value || null;
    else if (name === "style") Object.entries(value || {}).forEach(([k, v]) => node.style.setProperty(k, v));
    else if (AS_PROPERTY.has(name)) {
      // what somebody is typing is theirs
      const isTyping = name === "value" && node === document.activeElement && was.value === value;
      if (!isTyping && node[name] !== (value ?? "")) node[name] = value ?? (name === "value" ? "" : false);
    } else if (was[name] !== value) {
      if (value == null || value === false) node.removeAttribute(name);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node._props = props;
}
