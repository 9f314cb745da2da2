# Captures by pcaprub of Ruby: ruby client.rb INTERFACE FILTER COUNT
require "pcaprub"

$stdout.sync = true
interface, filter, count = ARGV[0], ARGV[1], ARGV[2].to_i
pcap = PCAPRUB::Pcap.open_live(interface, 200, false, 50)
pcap.setfilter(filter)
$stderr.puts "ready"
pcap.each_packet do |packet|
  puts "#{packet.length} #{packet.data.unpack1("H*")}"
  count -= 1
  break if count.zero?
end
stats = pcap.stats
puts "#{stats["recv"]} #{stats["drop"]} #{pcap.datalink}"
