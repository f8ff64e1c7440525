//! The value of an element: the contribution of a member, or a combination of contributions.
//! Combinations are interned: equal numbers mean equal trees of operands, and so equal bits.

use std::collections::HashMap;
use std::rc::Rc;

/// The value of an element of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    /// The call that it belongs to.
    pub(super) call: u32,
    /// Its place in the input of its contributor.
    pub(super) element: u32,
    /// The combination; below the number of members: the contribution of one.
    tree: u32,
    finished: bool,
}

impl Value {
    /// The contribution of `member`.
    pub(super) fn input(call: u32, member: u32, element: u32) -> Value {
        Value { call, element, tree: member, finished: false }
    }

    /// What it was combined of, whatever element it is.
    pub(super) fn combined(self) -> (u32, bool) {
        (self.tree, self.finished)
    }
}

/// The value that an element should have in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// All contributions to that element.
    Whole(u32),
    /// That element of a member.
    From(u32, u32),
}

/// Members one after the other: first and last.
type Runs = Rc<[(u32, u32)]>;

/// Two operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    left: u32,
    right: u32,
    /// Whether the result is stored, and so rounded, before it is combined further.
    rounded: bool,
}

struct Tree {
    /// What it was made of; `None`: the contribution of a member.
    operands: Option<Pair>,
    /// The members in it, sorted and joined.
    runs: Runs,
    /// Whether only neighbours were combined, the lower ones on the left.
    in_order: bool,
}

/// All combinations there are.
pub(super) struct Values {
    size: u32,
    trees: Vec<Tree>,
    made: HashMap<Pair, u32>,
    last: Option<(Pair, u32)>,
}

impl Values {
    pub(super) fn new(size: u32) -> Values {
        let leaf =
            |member| Tree { operands: None, runs: Rc::new([(member, member)]), in_order: true };
        Values { size, trees: (0..size).map(leaf).collect(), made: HashMap::new(), last: None }
    }

    /// `left op right`; not `rounded` if the pass goes on with it.
    pub(super) fn combine(
        &mut self,
        left: Value,
        right: Value,
        rounded: bool,
    ) -> Result<Value, String> {
        let same = left.call == right.call && left.element == right.element;
        if !same || left.finished || right.finished {
            return Err(format!("combines {} with {}", self.name(left), self.name(right)));
        }
        let pair = Pair { left: left.tree, right: right.tree, rounded };
        let known = self.last.filter(|last| last.0 == pair).map(|last| last.1);
        let tree = match known.or_else(|| self.made.get(&pair).copied()) {
            Some(tree) => tree,
            None => {
                let of = |tree: u32| &self.trees[tree as usize];
                let (a, b) = (of(pair.left), of(pair.right));
                let runs = joined(&a.runs, &b.runs)?;
                let in_order = a.in_order && b.in_order && runs.len() == 1 && a.runs[0] < b.runs[0];
                self.trees.push(Tree { operands: Some(pair), runs, in_order });
                let tree = self.trees.len() as u32 - 1;
                self.made.insert(pair, tree);
                tree
            }
        };
        self.last = Some((pair, tree));
        Ok(Value { tree, ..left })
    }

    /// The finished value.
    pub(super) fn finish(&self, value: Value) -> Result<Value, String> {
        if value.finished || !self.is_whole(value) {
            return Err(format!("finishes {}", self.name(value)));
        }
        Ok(Value { finished: true, ..value })
    }

    /// Checks that it is the wanted value; the error describes it.
    pub(super) fn check(
        &self,
        value: Value,
        call: u32,
        wanted: Wanted,
        in_order: bool,
    ) -> Result<(), String> {
        let right = match wanted {
            Wanted::Whole(element) => {
                let ordered = !in_order || self.trees[value.tree as usize].in_order;
                value.element == element && value.finished && self.is_whole(value) && ordered
            }
            Wanted::From(member, element) => value == Value::input(call, member, element),
        };
        if right && value.call == call { Ok(()) } else { Err(self.name(value)) }
    }

    /// How it was combined: each pair of parentheses is a pass, at whose end it is rounded.
    pub(super) fn combination(&self, value: Value) -> String {
        let mut words = self.words(value.tree);
        if value.finished {
            words.push_str(" finished");
        }
        words
    }

    fn words(&self, tree: u32) -> String {
        let Some(Pair { left, right, rounded }) = self.trees[tree as usize].operands else {
            return tree.to_string();
        };
        let both = format!("{} {}", self.words(left), self.words(right));
        if rounded { format!("({both})") } else { both }
    }

    fn is_whole(&self, value: Value) -> bool {
        *self.trees[value.tree as usize].runs == [(0, self.size - 1)]
    }

    /// For messages.
    fn name(&self, value: Value) -> String {
        let Tree { runs, in_order, .. } = &self.trees[value.tree as usize];
        let from: Vec<String> = runs.iter().map(|(a, b)| format!("{a}..={b}")).collect();
        format!(
            "element {} of call {} from {}{}{}",
            value.element,
            value.call,
            from.join(", "),
            if *in_order { "" } else { ", not in order" },
            if value.finished { ", finished" } else { "" },
        )
    }
}

/// Both together; an error if a member is in both.
fn joined(left: &Runs, right: &Runs) -> Result<Runs, String> {
    let mut all: Vec<(u32, u32)> = left.iter().chain(right.iter()).copied().collect();
    all.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(all.len());
    for run in all {
        match joined.last_mut() {
            Some(last) if last.1 >= run.0 => {
                return Err(format!("combines the contribution of {} twice", run.0));
            }
            Some(last) if last.1 + 1 == run.0 => last.1 = run.1,
            _ => joined.push(run),
        }
    }
    Ok(joined.into())
}
