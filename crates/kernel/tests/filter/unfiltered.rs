//! Subscribers that get every frame, because the program does not have their filters.

use parshall_core::abi::CAPTURE_SNAPLEN_MAX;
use parshall_core::filter::MergedFilter;
use parshall_core::filter::emit::{Hook, LinkLayer};

use crate::expressions::{Compiled, merge, snaplen_bytes};
use crate::kernel::{Surroundings, available};
use crate::same_verdict::HOOKS;

const EVERYTHING: u64 = 1 << 5 | 1 << 63;

#[test]
fn they_get_every_frame_beside_the_others() {
    if !available() {
        return;
    }
    let tcp = Compiled::new("tcp", LinkLayer::Ethernet);
    let (filter, nobody) = (merge([&tcp]), MergedFilter::none());
    let mut wanted = vec![0_u8; 60];
    wanted[12..14].copy_from_slice(&[8, 0]);
    wanted[14] = 0x45;
    wanted[23] = 6;
    let mut other = wanted.clone();
    other[23] = 17;
    for hook in HOOKS {
        let around = Surroundings::new(hook);
        let (one, none) = (
            around.load(&filter, LinkLayer::Ethernet),
            around.load(&nobody, LinkLayer::Ethernet),
        );
        let verdicts =
            || [&one, &none].map(|loaded| [&wanted, &other].map(|one| loaded.verdict(one)));
        let filtered = [[(1, snaplen_bytes(0)), (0, 0)], [(0, 0), (0, 0)]];
        assert_eq!(verdicts(), filtered, "{hook:?}");
        around.set_unfiltered(EVERYTHING);
        let all = |more: u64| (EVERYTHING | more, CAPTURE_SNAPLEN_MAX);
        assert_eq!(verdicts(), [[all(1), all(0)], [all(0), all(0)]], "{hook:?}");
        // A subscriber whose old filter the program still has.
        around.set_unfiltered(1);
        let both = (1, CAPTURE_SNAPLEN_MAX);
        assert_eq!(verdicts()[0], [both, both], "{hook:?}");
        around.set_unfiltered(0);
        assert_eq!(verdicts(), filtered, "{hook:?}");
        // Headers that are read from a copy begin the set anew.
        if let Hook::Xdp { frags: true } = hook {
            around.set_unfiltered(EVERYTHING);
            let long = [wanted.clone(), vec![0; 5000]].concat();
            assert_eq!(one.verdict_when_linear(&long, Some(14)), all(1));
            around.set_unfiltered(0);
            assert_eq!(one.verdict_when_linear(&long, Some(14)), filtered[0][0]);
        }
    }
}
