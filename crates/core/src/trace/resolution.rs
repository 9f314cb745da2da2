//! The unit of time in a pcapng file: `if_tsresol` and `if_tsoffset`.

const NS_PER_S: u128 = 1_000_000_000;

/// Converts the times of an interface to nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolution {
    unit: Unit,
    offset_ns: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// This many nanoseconds.
    Nanoseconds(u64),
    /// A nanosecond divided by this.
    Parts(u128),
    /// 2 to the power of minus this, in seconds.
    PowerOfTwo(u32),
}

impl Resolution {
    /// The resolution of an interface whose `if_tsresol` is `exponent` and whose `if_tsoffset` is `offset_s`.
    /// Without these options they are 6 and 0.
    pub(super) fn new(exponent: u8, offset_s: i64) -> Self {
        let power = u32::from(exponent & 0x7f);
        let unit = if exponent & 0x80 != 0 {
            Unit::PowerOfTwo(power)
        } else if power <= 9 {
            Unit::Nanoseconds(10u64.pow(9 - power))
        } else {
            Unit::Parts(10u128.checked_pow(power - 9).unwrap_or(u128::MAX))
        };
        Self {
            unit,
            offset_ns: i128::from(offset_s) * NS_PER_S as i128,
        }
    }

    /// Nanoseconds since 1970, rounded down; times outside 64 bits are clamped.
    #[inline]
    pub(super) fn to_ns(self, time: u64) -> u64 {
        if self.unit == Unit::Nanoseconds(1) && self.offset_ns == 0 {
            return time;
        }
        let time = u128::from(time);
        let ns = match self.unit {
            Unit::Nanoseconds(ns) => time * u128::from(ns),
            Unit::Parts(parts) => time / parts,
            Unit::PowerOfTwo(power) => (time * NS_PER_S) >> power,
        };
        // At most 2^64 s in ns, far below 2^127.
        let ns = ns as i128 + self.offset_ns;
        ns.clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Nanoseconds of one unit, rounded down.
    pub(super) fn unit_ns(self) -> u64 {
        match self.unit {
            Unit::Nanoseconds(ns) => ns,
            Unit::Parts(_) => 0,
            Unit::PowerOfTwo(power) => (NS_PER_S >> power) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resolution_gives_the_same_second() {
        for exponent in 0..=19 {
            let units = 10u64.pow(u32::from(exponent)).saturating_mul(1);
            let second = Resolution::new(exponent, 0).to_ns(units);
            assert_eq!(second, 1_000_000_000, "10^-{exponent}");
        }
        for power in 0..=63 {
            let second = Resolution::new(0x80 | power, 0).to_ns(1 << power);
            assert_eq!(second, 1_000_000_000, "2^-{power}");
        }
    }

    #[test]
    fn extremes_are_clamped() {
        assert_eq!(Resolution::new(0, 0).to_ns(u64::MAX), u64::MAX);
        assert_eq!(Resolution::new(0, i64::MAX).to_ns(u64::MAX), u64::MAX);
        assert_eq!(Resolution::new(6, -1).to_ns(999_999), 0);
        assert_eq!(Resolution::new(6, -1).to_ns(1_000_001), 1_000);
        assert_eq!(Resolution::new(127, 0).to_ns(u64::MAX), 0);
        assert_eq!(Resolution::new(0x80 | 127, 0).to_ns(u64::MAX), 0);
    }
}
