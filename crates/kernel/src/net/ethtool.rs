//! What the ethtool ioctl says of an interface. It needs no privilege.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use parshall_core::filter::emit::TagsBeside;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

const SIOCETHTOOL: u64 = 0x8946;
/// `ETHTOOL_GSTRINGS`, `ETHTOOL_GSSET_INFO`, `ETHTOOL_GFEATURES` of `linux/ethtool.h`.
const GET_STRINGS: u32 = 0x1b;
const GET_SET_SIZES: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
/// `ETH_SS_FEATURES`: the names of the features.
const FEATURE_NAMES: u32 = 4;
/// `ETH_GSTRING_LEN`.
const NAME_BYTES: usize = 32;
/// Offloads of VLAN tags, as `ethtool -k` names them.
const CUSTOMER_TAGS: &str = "tx-vlan-hw-insert";
const SERVICE_TAGS: &str = "tx-vlan-stag-hw-insert";

/// A socket for requests about interfaces of the network namespace of the calling thread.
pub(crate) struct Ethtool(OwnedFd);

impl Ethtool {
    /// Opens the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self(socket(AddressFamily::INET, SocketType::DGRAM, None)?))
    }

    /// A value that is a single number.
    pub fn number(&self, interface: &str, command: u32) -> io::Result<u32> {
        let mut request = [command, 0];
        self.ask(interface, &mut request)?;
        Ok(request[1])
    }

    /// The features of an interface that are switched on.
    pub fn features(&self, interface: &str) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: command, reserved, a mask of 64 bits, then a size for each bit of it.
        let mut sizes = [GET_SET_SIZES, 0, 0, 0, 0];
        let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
        for (word, bytes) in sizes[2..4].iter_mut().zip(mask.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        self.ask(interface, &mut sizes)?;
        let count = sizes[4] as usize;
        if count == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // struct ethtool_gstrings: command, set, count, then the names.
        let mut names = vec![0; 3 + count * NAME_BYTES / 4];
        names[..3].copy_from_slice(&[GET_STRINGS, FEATURE_NAMES, sizes[4]]);
        self.ask(interface, &mut names)?;
        // struct ethtool_gfeatures: command, number of blocks, then four words for each 32 features.
        let blocks = count.div_ceil(32);
        let mut features = vec![0; 2 + blocks * 4];
        features[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
        self.ask(interface, &mut features)?;
        let is_active = |feature: usize| features[2 + feature / 32 * 4 + 2] >> (feature % 32) & 1;
        let names = names[3..].chunks_exact(NAME_BYTES / 4).map(text);
        let active = names
            .enumerate()
            .filter(|(feature, _)| is_active(*feature) == 1);
        Ok(active.map(|(_, name)| name).collect())
    }

    /// Makes a request, which the kernel answers in its place.
    fn ask(&self, interface: &str, request: &mut [u32]) -> io::Result<()> {
        // SAFETY: all bytes zero is a valid request.
        let mut named: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= named.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (target, byte) in named.ifr_name.iter_mut().zip(interface.bytes()) {
            *target = byte as libc::c_char;
        }
        named.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: both outlive the call; the kernel writes no more than the request has room for.
        let status = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut named) };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The VLAN tags that an interface sends by itself: up to it they stand beside the frame. Of an interface that cannot be
/// asked: all, as with most drivers.
pub fn tags_sent_beside(interface_index: u32) -> TagsBeside {
    let features = || {
        let ethtool = Ethtool::open()?;
        ethtool.features(&netdevice::index_to_name(&ethtool.0, interface_index)?)
    };
    features().map_or(TagsBeside::ALL, |features| {
        let has = |name: &str| features.iter().any(|feature| feature == name);
        TagsBeside {
            customer: has(CUSTOMER_TAGS),
            service: has(SERVICE_TAGS),
        }
    })
}
