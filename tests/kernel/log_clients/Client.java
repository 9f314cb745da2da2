import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HexFormat;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.FixedSizeBinaryVector;
import org.apache.arrow.vector.UInt1Vector;
import org.apache.arrow.vector.UInt2Vector;
import org.apache.arrow.vector.UInt4Vector;
import org.apache.arrow.vector.UInt8Vector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;

/** Prints the rows of Arrow streams by arrow-vector: Client FILE... */
class Client {
    static String cell(ArrowStreamReader reader, FieldVector column, int row) throws Exception {
        if (column.isNull(row)) {
            return "-";
        }
        var encoding = column.getField().getDictionary();
        if (encoding != null) {
            var key = ((Number) column.getObject(row)).intValue();
            return reader.lookup(encoding.getId()).getVector().getObject(key).toString();
        }
        // As numbers without a sign.
        if (column instanceof UInt1Vector numbers) {
            return numbers.getObjectNoOverflow(row).toString();
        } else if (column instanceof UInt2Vector numbers) {
            return Integer.toString(numbers.get(row));
        } else if (column instanceof UInt4Vector numbers) {
            return numbers.getObjectNoOverflow(row).toString();
        } else if (column instanceof UInt8Vector numbers) {
            return numbers.getObjectNoOverflow(row).toString();
        } else if (column instanceof FixedSizeBinaryVector bytes) {
            return HexFormat.of().formatHex(bytes.get(row));
        }
        return column.getObject(row).toString();
    }

    public static void main(String[] paths) throws Exception {
        try (var out = new PrintStream(new BufferedOutputStream(System.out));
                var allocator = new RootAllocator()) {
            for (var path : paths) {
                out.println(path);
                try (var file = new FileInputStream(path);
                        var reader = new ArrowStreamReader(file, allocator)) {
                    while (reader.loadNextBatch()) {
                        var batch = reader.getVectorSchemaRoot();
                        for (int row = 0; row < batch.getRowCount(); row++) {
                            var cells = new ArrayList<String>();
                            for (var column : batch.getFieldVectors()) {
                                cells.add(cell(reader, column, row));
                            }
                            out.println(String.join("\t", cells));
                        }
                    }
                }
            }
        }
    }
}
