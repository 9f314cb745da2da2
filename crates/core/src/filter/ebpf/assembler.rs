//! Assembles instructions and resolves jumps.

use super::{Bits, Instruction, Operand, Register, Test};

/// A place that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(usize);

#[derive(Clone, Copy, Debug)]
enum Item {
    Plain(Instruction),
    Map(usize),
    Place(Label),
    Jump(Label),
    Branch(Bits, Test, Register, Operand, Label),
}

/// Where the address of a map is to be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The first of the two slots.
    pub slot: usize,
    /// Which map.
    pub map: usize,
}

/// A program under construction.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    items: Vec<Item>,
    labels: usize,
    jumped_to: Vec<bool>,
}

impl Assembler {
    /// A label that is not placed.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        self.jumped_to.push(false);
        Label(self.labels - 1)
    }

    /// Places a label here.
    pub fn place(&mut self, label: Label) {
        self.items.push(Item::Place(label));
    }

    /// Whether something jumps to a label.
    pub fn is_jumped_to(&self, label: Label) -> bool {
        self.jumped_to[label.0]
    }

    /// Puts an instruction.
    pub fn put(&mut self, instruction: Instruction) {
        self.items.push(Item::Plain(instruction));
    }

    /// Puts the address of map number `map` into a register.
    pub fn put_map(&mut self, to: Register, map: usize) {
        let [first, second] = Instruction::map(to);
        self.items.push(Item::Map(map));
        self.put(first);
        self.put(second);
    }

    /// Puts the address of the first value of map number `map`, an array, into a register.
    pub fn put_map_value(&mut self, to: Register, map: usize) {
        let [first, second] = Instruction::map_value(to);
        self.items.push(Item::Map(map));
        self.put(first);
        self.put(second);
    }

    /// Jumps to a label.
    pub fn jump(&mut self, to: Label) {
        self.jumped_to[to.0] = true;
        self.items.push(Item::Jump(to));
    }

    /// Jumps to a label when a test holds.
    pub fn branch(
        &mut self,
        bits: Bits,
        test: Test,
        register: Register,
        operand: impl Into<Operand>,
        to: Label,
    ) {
        self.jumped_to[to.0] = true;
        self.items
            .push(Item::Branch(bits, test, register, operand.into(), to));
    }

    /// The finished program, and where its maps are to be filled in.
    ///
    /// A 16-bit jump becomes a long one if its distance requires it. That may lengthen other jumps, so it is
    /// repeated until no jump changes.
    pub fn finish(&self) -> (Vec<Instruction>, Vec<Relocation>) {
        let mut far = vec![false; self.items.len()];
        loop {
            let (starts, places) = self.lay_out(&far);
            let mut changed = false;
            for (at, item) in self.items.iter().enumerate() {
                if let Item::Jump(to) | Item::Branch(.., to) = item
                    && !far[at]
                    && i16::try_from(distance(starts[at], places[to.0])).is_err()
                {
                    far[at] = true;
                    changed = true;
                }
            }
            if !changed {
                return self.encode(&far, &starts, &places);
            }
        }
    }

    /// The slot at which each item and each label stands.
    fn lay_out(&self, far: &[bool]) -> (Vec<usize>, Vec<usize>) {
        let mut starts = Vec::with_capacity(self.items.len());
        let mut places = vec![0; self.labels];
        let mut slot = 0;
        for (item, far) in self.items.iter().zip(far) {
            starts.push(slot);
            slot += match item {
                Item::Map(_) => 0,
                Item::Place(label) => {
                    places[label.0] = slot;
                    0
                }
                Item::Plain(_) | Item::Jump(_) => 1,
                Item::Branch(..) => {
                    if *far {
                        3
                    } else {
                        1
                    }
                }
            };
        }
        (starts, places)
    }

    fn encode(
        &self,
        far: &[bool],
        starts: &[usize],
        places: &[usize],
    ) -> (Vec<Instruction>, Vec<Relocation>) {
        let mut instructions = Vec::new();
        let mut relocations = Vec::new();
        for (at, item) in self.items.iter().enumerate() {
            match *item {
                Item::Plain(instruction) => instructions.push(instruction),
                Item::Map(map) => relocations.push(Relocation {
                    slot: instructions.len(),
                    map,
                }),
                Item::Place(_) => {}
                Item::Jump(to) => {
                    let distance = distance(starts[at], places[to.0]);
                    instructions.push(match i16::try_from(distance) {
                        Ok(near) if !far[at] => Instruction::jump(near),
                        _ => Instruction::jump_far(distance),
                    });
                }
                Item::Branch(bits, test, register, operand, to) => {
                    if far[at] {
                        instructions.push(Instruction::branch(bits, test, register, operand, 1));
                        instructions.push(Instruction::jump(1));
                        let distance = distance(starts[at] + 2, places[to.0]);
                        instructions.push(Instruction::jump_far(distance));
                    } else {
                        let distance = distance(starts[at], places[to.0]) as i16;
                        instructions
                            .push(Instruction::branch(bits, test, register, operand, distance));
                    }
                }
            }
        }
        (instructions, relocations)
    }
}

/// Slots from behind the jump at `from` to `to`.
fn distance(from: usize, to: usize) -> i32 {
    to as i32 - from as i32 - 1
}
