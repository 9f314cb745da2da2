//! Value numbering: each value that filters compute from a frame has one number in all filters and
//! instructions.

use std::collections::HashMap;

use super::classic::{Arithmetic, Beside, Origin, Width, read};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);

impl ValueId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a value is computed. All values are unsigned, of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Constant(u32),
    /// Bytes of the frame on the wire.
    Length,
    /// What is known of the packet beside its bytes.
    Beside(Beside),
    /// Bytes of the frame at a constant offset, in network byte order.
    Load {
        width: Width,
        offset: u32,
    },
    /// Bytes of the frame at `index + offset`, summed without wrapping, in network byte order.
    LoadIndexed {
        width: Width,
        /// The part of the offset that depends on the frame.
        index: ValueId,
        offset: u32,
    },
    /// Arithmetic on two values. A condition before it excludes a divisor of 0.
    Computed {
        operator: Arithmetic,
        left: ValueId,
        right: ValueId,
    },
}

/// Value numbering: equal values have equal numbers.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: Vec<Value>,
    /// The maximum of each value.
    maxima: Vec<u32>,
    numbers: HashMap<Value, ValueId>,
}

impl Values {
    pub fn get(&self, id: ValueId) -> Value {
        self.values[id.index()]
    }

    pub fn maximum(&self, id: ValueId) -> u32 {
        self.maxima[id.index()]
    }

    /// The number itself, when the value is a constant.
    pub fn as_constant(&self, id: ValueId) -> Option<u32> {
        match self.get(id) {
            Value::Constant(constant) => Some(constant),
            _ => None,
        }
    }

    pub fn constant(&mut self, constant: u32) -> ValueId {
        self.intern(Value::Constant(constant), constant)
    }

    pub fn length(&mut self) -> ValueId {
        self.intern(Value::Length, u32::MAX)
    }

    pub fn beside(&mut self, what: Beside) -> ValueId {
        self.intern(Value::Beside(what), u32::MAX)
    }

    pub fn load(&mut self, width: Width, offset: u32) -> ValueId {
        self.intern(Value::Load { width, offset }, maximum_of(width))
    }

    /// A load at `index + offset`; `None` when no frame is that long.
    pub fn load_indexed(&mut self, width: Width, index: ValueId, offset: u32) -> Option<ValueId> {
        let (index, offset) = self.anchor(index, offset)?;
        Some(match self.as_constant(index) {
            Some(0) => self.load(width, offset),
            _ => {
                let value = Value::LoadIndexed {
                    width,
                    index,
                    offset,
                };
                self.intern(value, maximum_of(width))
            }
        })
    }

    /// Moves the constant part of an index into the offset, so that loads of neighbouring bytes share their
    /// index; `None` when the sum exceeds 32 bits.
    pub fn anchor(&mut self, index: ValueId, offset: u32) -> Option<(ValueId, u32)> {
        if let Some(constant) = self.as_constant(index) {
            return Some((self.constant(0), constant.checked_add(offset)?));
        }
        if let Value::Computed {
            operator: Arithmetic::Add,
            left,
            right,
        } = self.get(index)
            && let Some(constant) = self.as_constant(right)
            // Only when the filter's own addition cannot have wrapped.
            && self.maximum(left).checked_add(constant).is_some()
            && let Some(sum) = offset.checked_add(constant)
        {
            return Some((left, sum));
        }
        Some((index, offset))
    }

    /// Arithmetic; `None` when it divides by a constant 0.
    pub fn compute(
        &mut self,
        operator: Arithmetic,
        left: ValueId,
        right: ValueId,
    ) -> Option<ValueId> {
        let (left, right) = if operator.commutes() && self.goes_right(left, right) {
            (right, left)
        } else {
            (left, right)
        };
        match (self.as_constant(left), self.as_constant(right)) {
            (Some(left), Some(right)) => {
                let result = operator.apply(left, right)?;
                return Some(self.constant(result));
            }
            (None, Some(constant)) => {
                return self.compute_with_constant(operator, left, right, constant);
            }
            _ => {}
        }
        Some(self.intern_computed(operator, left, right))
    }

    /// Whether `left` belongs on the right, for a canonical order: constants do, else the greater number.
    fn goes_right(&self, left: ValueId, right: ValueId) -> bool {
        match (
            self.as_constant(left).is_some(),
            self.as_constant(right).is_some(),
        ) {
            (true, false) => true,
            (false, true) => false,
            _ => left > right,
        }
    }

    fn compute_with_constant(
        &mut self,
        operator: Arithmetic,
        left: ValueId,
        right: ValueId,
        constant: u32,
    ) -> Option<ValueId> {
        match (operator, constant) {
            (Arithmetic::Divide | Arithmetic::Remainder, 0) => return None,
            (Arithmetic::Subtract, _) => {
                let negated = self.constant(constant.wrapping_neg());
                return self.compute(Arithmetic::Add, left, negated);
            }
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, 32..) => {
                return Some(self.constant(0));
            }
            (Arithmetic::And | Arithmetic::Multiply, 0) => return Some(self.constant(0)),
            (Arithmetic::And, _) if covers(constant, self.maximum(left)) => return Some(left),
            (Arithmetic::Multiply | Arithmetic::Divide, 1)
            | (
                Arithmetic::Add
                | Arithmetic::Or
                | Arithmetic::ExclusiveOr
                | Arithmetic::ShiftLeft
                | Arithmetic::ShiftRight,
                0,
            ) => return Some(left),
            _ => {}
        }
        // (value op constant) op constant: one operation.
        if let Value::Computed {
            operator: inner,
            left: innermost,
            right: first,
        } = self.get(left)
            && inner == operator
            && matches!(
                operator,
                Arithmetic::Add | Arithmetic::And | Arithmetic::Or | Arithmetic::ExclusiveOr
            )
            && let Some(first) = self.as_constant(first)
        {
            let both = operator.apply(first, constant)?;
            let both = self.constant(both);
            return self.compute(operator, innermost, both);
        }
        Some(self.intern_computed(operator, left, right))
    }

    fn intern_computed(&mut self, operator: Arithmetic, left: ValueId, right: ValueId) -> ValueId {
        let (left_maximum, right_maximum) = (self.maximum(left), self.maximum(right));
        let constant = self.as_constant(right);
        let maximum = match operator {
            Arithmetic::And => left_maximum.min(right_maximum),
            Arithmetic::Or | Arithmetic::ExclusiveOr => ones_up_to(left_maximum | right_maximum),
            Arithmetic::Add => left_maximum.saturating_add(right_maximum),
            Arithmetic::Multiply => left_maximum.saturating_mul(right_maximum),
            Arithmetic::Divide => {
                constant.map_or(left_maximum, |divisor| left_maximum / divisor.max(1))
            }
            Arithmetic::Remainder => left_maximum.min(right_maximum.saturating_sub(1)),
            Arithmetic::ShiftRight => constant.map_or(left_maximum, |bits| left_maximum >> bits),
            Arithmetic::ShiftLeft => match constant {
                Some(bits) if left_maximum.leading_zeros() >= bits => left_maximum << bits,
                _ => u32::MAX,
            },
            Arithmetic::Subtract => u32::MAX,
        };
        let value = Value::Computed {
            operator,
            left,
            right,
        };
        self.intern(value, maximum)
    }

    fn intern(&mut self, value: Value, maximum: u32) -> ValueId {
        *self.numbers.entry(value).or_insert_with(|| {
            let id = ValueId(u32::try_from(self.values.len()).expect("fewer than 2^32 values"));
            self.values.push(value);
            self.maxima.push(maximum);
            id
        })
    }

    /// Computes a value from a frame.
    ///
    /// `None` when a byte lies behind the frame's end or a divisor is 0. The conditions before a value
    /// exclude that.
    pub fn evaluate(&self, id: ValueId, frame: &[u8], known: &mut Known) -> Option<u32> {
        if let Some(number) = known.values.get(&id) {
            return *number;
        }
        let number = match self.get(id) {
            Value::Constant(constant) => Some(constant),
            Value::Length => Some(frame.len() as u32),
            Value::Beside(what) => Some(known.origin.value(what)),
            Value::Load { width, offset } => read(frame, width, u64::from(offset)),
            Value::LoadIndexed {
                width,
                index,
                offset,
            } => self
                .evaluate(index, frame, known)
                .and_then(|index| read(frame, width, u64::from(index) + u64::from(offset))),
            Value::Computed {
                operator,
                left,
                right,
            } => {
                let left = self.evaluate(left, frame, known)?;
                operator.apply(left, self.evaluate(right, frame, known)?)
            }
        };
        known.values.insert(id, number);
        number
    }
}

/// Values that were computed from one frame already.
#[derive(Clone, Debug, Default)]
pub struct Known {
    values: HashMap<ValueId, Option<u32>>,
    origin: Origin,
    /// Whether a packet socket shows the frame's outer VLAN tag beside it.
    pub tag_is_beside: bool,
}

impl Known {
    /// Nothing yet of a frame that passes there.
    pub fn of(origin: Origin, tag_is_beside: bool) -> Self {
        Self {
            origin,
            tag_is_beside,
            ..Self::default()
        }
    }
}

const fn maximum_of(width: Width) -> u32 {
    match width {
        Width::Byte => 0xff,
        Width::Half => 0xffff,
        Width::Word => u32::MAX,
    }
}

/// All bits set up to the highest one that is set.
const fn ones_up_to(number: u32) -> u32 {
    match number {
        0 => 0,
        _ => u32::MAX >> number.leading_zeros(),
    }
}

/// Whether a mask leaves every number up to `maximum` as it is.
const fn covers(mask: u32, maximum: u32) -> bool {
    ones_up_to(maximum) & !mask == 0
}
