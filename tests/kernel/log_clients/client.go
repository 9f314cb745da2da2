// Prints the rows of Arrow streams by arrow-go: client FILE...
package main

import (
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

func cell(column arrow.Array, row int) string {
	if column.IsNull(row) {
		return "-"
	}
	switch column := column.(type) {
	case *array.Timestamp:
		return fmt.Sprint(int64(column.Value(row)))
	case *array.FixedSizeBinary:
		return hex.EncodeToString(column.Value(row))
	case *array.Dictionary:
		return column.Dictionary().ValueStr(column.GetValueIndex(row))
	}
	return column.ValueStr(row)
}

func main() {
	for _, path := range os.Args[1:] {
		file, err := os.Open(path)
		if err != nil {
			log.Fatal(err)
		}
		reader, err := ipc.NewReader(file)
		if err != nil {
			log.Fatal(path, ": ", err)
		}
		fmt.Println(path)
		for reader.Next() {
			batch := reader.RecordBatch()
			for row := range int(batch.NumRows()) {
				cells := []string{}
				for _, column := range batch.Columns() {
					cells = append(cells, cell(column, row))
				}
				fmt.Println(strings.Join(cells, "\t"))
			}
		}
		if err := reader.Err(); err != nil {
			log.Fatal(path, ": ", err)
		}
	}
}
