// Prints the rows of Arrow streams by apache-arrow: client.js plain|codecs FILE...
const { readFileSync } = require("fs");
const { CompressionType, DataType, RecordBatchReader, compressionRegistry } = require("apache-arrow");

const [registry, ...paths] = process.argv.slice(2);
if (registry === "codecs") {
  const lz4 = require("lz4js");
  const zstd = require("fzstd");
  compressionRegistry.set(CompressionType.LZ4_FRAME, { decode: (frame) => lz4.decompress(frame) });
  // A copy begins at a multiple of 8 bytes.
  compressionRegistry.set(CompressionType.ZSTD, { decode: (frame) => zstd.decompress(frame).slice() });
}

function cell(column, row) {
  const value = column.get(row);
  if (value === null) return "-";
  // get() gives milliseconds.
  if (DataType.isTimestamp(column.type)) return column.data[0].values[row];
  return value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;
}

const lines = [];
for (const path of paths) {
  lines.push(path);
  for (const batch of RecordBatchReader.from(readFileSync(path))) {
    const columns = batch.schema.fields.map((_, index) => batch.getChildAt(index));
    for (let row = 0; row < batch.numRows; row++) {
      lines.push(columns.map((column) => cell(column, row)).join("\t"));
    }
  }
}
console.log(lines.join("\n"));
