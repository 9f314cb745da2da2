# Captures by Net::Pcap of Perl: perl client.pl INTERFACE FILTER COUNT
use strict;
use warnings;
use Net::Pcap;

$| = 1;
my ($interface, $filter, $count) = @ARGV;
my ($error, $program, %stats);
my $pcap = Net::Pcap::open_live($interface, 200, 0, 50, \$error) or die $error;
Net::Pcap::compile($pcap, \$program, $filter, 1, 0) == 0 or die Net::Pcap::geterr($pcap);
Net::Pcap::setfilter($pcap, $program) == 0 or die Net::Pcap::geterr($pcap);
print STDERR "ready\n";
Net::Pcap::loop($pcap, $count, sub {
    my ($user, $header, $bytes) = @_;
    print "$header->{len} ", unpack("H*", $bytes), "\n";
}, "");
Net::Pcap::stats($pcap, \%stats);
print "$stats{ps_recv} $stats{ps_drop} ", Net::Pcap::datalink($pcap), "\n";
Net::Pcap::close($pcap);
