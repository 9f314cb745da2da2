//! The stages of the path: the mirror of `enum path_stage` in `bpf/abi.h`, and the names that logs and summaries show.

/// Calls a macro with all stages, in the order in which packets pass them: that of `enum path_stage`.
macro_rules! stage_table {
    ($callback:ident) => {
        $callback! {
            xdp gro netif_rx receive tcx_ingress pre_routing local_in socket_in tcp_receive data_ready copy
            forward local_out post_routing socket_out queue qdisc_enqueue qdisc_dequeue start_xmit xmit
            drop consume
        }
    };
}
pub(crate) use stage_table;

macro_rules! list_stages {
    ($($name:ident)*) => {
        /// A stage, by the name that users see.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum Stage { $($name,)* }

        impl Stage {
            /// All stages, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        /// Names of the stages, in their order; the last one stands for the whole path.
        pub const STAGE_NAMES: [&str; PATH_STAGE_COUNT] = [$(stringify!($name),)* "whole"];
    };
}

stage_table!(list_stages);

/// The number that stands for the whole path: that behind the last stage.
pub const STAGE_PAD: usize = Stage::ALL.len();
/// Number of stages, with the one that stands for the whole path.
pub const PATH_STAGE_COUNT: usize = STAGE_PAD + 1;

impl Stage {
    /// Its number in `enum path_stage`.
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        STAGE_NAMES[self.number()]
    }

    /// Whether it is one of these: bit by number.
    pub const fn is_in(self, stages: u32) -> bool {
        stages >> self.number() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::{STAGE_NAMES, Stage};
    use std::path::Path;

    /// The enumerators of `enum path_stage`, in their order.
    fn enumerators() -> Vec<String> {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf/abi.h");
        let text = std::fs::read_to_string(header).unwrap();
        let (_, behind) = text.split_once("enum path_stage {").unwrap();
        let (body, _) = behind.split_once("};").unwrap();
        let names = body.lines().filter_map(|line| line.split_once(','));
        names.map(|(name, _)| name.trim().to_string()).collect()
    }

    #[test]
    fn the_stages_are_those_of_the_header() {
        let mirrored = Stage::ALL
            .iter()
            .map(|stage| format!("STAGE_{}", stage.name().to_uppercase()));
        let ends = ["STAGE_PAD", "PATH_STAGE_COUNT"].map(String::from);
        assert_eq!(enumerators(), mirrored.chain(ends).collect::<Vec<_>>());
    }

    #[test]
    fn a_stage_has_the_number_of_its_place() {
        for (place, stage) in Stage::ALL.iter().enumerate() {
            assert_eq!(stage.number(), place);
            assert_eq!(stage.name(), STAGE_NAMES[place]);
        }
    }
}
