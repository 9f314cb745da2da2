//! Enumerations of the kernel's type information (BTF; Documentation/bpf/btf.rst). libbpf finds one by its name in that
//! of the kernel; those of modules, and members whose enumeration is not known beforehand, are found here.

const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 8;
const MAGIC: u16 = 0xeb9f;
const KIND_ENUM: u32 = 6;

/// An enumeration of 32-bit values.
pub(crate) struct Enumeration<'bytes> {
    pub name: &'bytes str,
    members: &'bytes [u8],
    strings: Strings<'bytes>,
}

impl<'bytes> Enumeration<'bytes> {
    /// Names and values.
    pub fn members(&self) -> impl Iterator<Item = (&'bytes str, u32)> {
        self.members
            .chunks_exact(MEMBER_BYTES)
            .filter_map(|member| Some((self.strings.at(word(member, 0)?)?, word(member, 4)?)))
    }
}

/// The strings of a module begin where those of its kernel end.
#[derive(Clone, Copy)]
struct Strings<'bytes> {
    kernel: &'bytes [u8],
    own: &'bytes [u8],
}

impl<'bytes> Strings<'bytes> {
    fn at(&self, offset: u32) -> Option<&'bytes str> {
        let offset = offset as usize;
        let text = match offset.checked_sub(self.kernel.len()) {
            None => &self.kernel[offset..],
            Some(offset) => self.own.get(offset..)?,
        };
        std::str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()
    }
}

/// Calls `take` with each enumeration of a kernel, or of a module of that kernel. What is damaged ends early.
pub(crate) fn enumerations(
    bytes: &[u8],
    kernel: Option<&[u8]>,
    take: impl FnMut(&Enumeration<'_>),
) {
    let strings = kernel.map_or(Some(&[][..]), |kernel| Some(sections(kernel)?.1));
    if let (Some((types, own)), Some(kernel)) = (sections(bytes), strings) {
        walk(types, Strings { kernel, own }, take);
    }
}

/// Types and strings.
fn sections(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let magic = bytes.get(..2)?.try_into().ok()?;
    if u16::from_ne_bytes(magic) != MAGIC {
        return None;
    }
    let section = |at: usize| {
        let from = word(bytes, 4)?.checked_add(word(bytes, at)?)? as usize;
        bytes.get(from..from.checked_add(word(bytes, at + 4)? as usize)?)
    };
    (bytes.len() >= HEADER_BYTES).then_some(())?;
    Some((section(8)?, section(16)?))
}

fn walk<'bytes>(
    mut types: &'bytes [u8],
    strings: Strings<'bytes>,
    mut take: impl FnMut(&Enumeration<'bytes>),
) {
    while let (Some(name), Some(info)) = (word(types, 0), word(types, 4)) {
        let kind = info >> 24 & 31;
        let Some(more) = bytes_behind(kind, (info & 0xffff) as usize) else {
            return;
        };
        let Some(members) = types.get(TYPE_BYTES..TYPE_BYTES + more) else {
            return;
        };
        if kind == KIND_ENUM
            && let Some(name) = strings.at(name)
        {
            take(&Enumeration {
                name,
                members,
                strings,
            });
        }
        types = &types[TYPE_BYTES + more..];
    }
}

/// Bytes behind a `struct btf_type`, by its kind and its number of members.
fn bytes_behind(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        2 | 7..=12 | 16 | 18 => 0, // pointers, modifiers, FUNC, FLOAT, TYPE_TAG
        1 | 14 | 17 => 4,          // INT, VAR, DECL_TAG
        3 => 12,                   // ARRAY
        KIND_ENUM | 13 => 8 * members, // FUNC_PROTO
        4 | 5 | 15 | 19 => 12 * members, // STRUCT, UNION, DATASEC, ENUM64
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}
