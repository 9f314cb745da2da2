// Captures by gopacket of Go, which asks for statistics in one thread while another reads:
// client INTERFACE FILTER COUNT
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcap"
)

func main() {
	count, _ := strconv.Atoi(os.Args[3])
	handle, err := pcap.OpenLive(os.Args[1], 200, false, 50*time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	if err := handle.SetBPFFilter(os.Args[2]); err != nil {
		log.Fatal(err)
	}
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := handle.Stats(); err != nil {
					log.Fatal(err)
				}
			}
		}
	}()
	fmt.Fprintln(os.Stderr, "ready")
	for packet := range gopacket.NewPacketSource(handle, handle.LinkType()).Packets() {
		fmt.Printf("%d %x\n", packet.Metadata().Length, packet.Data())
		if count--; count == 0 {
			break
		}
	}
	close(stop)
	stats, err := handle.Stats()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats.PacketsReceived, stats.PacketsDropped, int(handle.LinkType()))
}
