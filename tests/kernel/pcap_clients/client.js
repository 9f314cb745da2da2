// Captures by cap of Node, in its event loop; it has no counts and no snapshot length of the program:
// node client.js INTERFACE FILTER COUNT
const { Cap } = require("cap");

const [interface, filter, count] = process.argv.slice(2);
const capture = new Cap();
const bytes = Buffer.alloc(65535);
let left = Number(count);
const linkType = capture.open(interface, filter, 1 << 20, bytes);
capture.on("packet", (length) => {
  if (left === 0) return;
  console.log(`${length} ${bytes.subarray(0, Math.min(length, 200)).toString("hex")}`);
  left -= 1;
  if (left === 0) {
    console.log(linkType);
    capture.close();
  }
});
console.error("ready");
