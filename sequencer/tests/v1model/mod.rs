//! A switch of the model v1model that runs `p4/sequencer.p4` without any P4 tool: slow, of one
//! thread, and as strict about names, widths and handles as it can be. What it proves is that the
//! program and its control plane fit each other and do what a sequencer does; what a compiler or
//! another switch makes of the program is for `tests/switch.rs`.

#![allow(missing_docs)]

pub mod commands;
pub mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use syntax::{Expression, Fields, Program, Statement, Table};

/// What `mark_to_drop` makes of `egress_spec`.
const DROP: u128 = 511;
/// As much as is used of it.
const STANDARD_METADATA: [(&str, u32); 6] = [
    ("egress_spec", 9),
    ("egress_port", 9),
    ("ingress_port", 9),
    ("mcast_grp", 16),
    ("egress_rid", 16),
    ("checksum_error", 1),
];

/// Bits, and how many, unless it is a number that fits anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    bits: u128,
    width: Option<u32>,
}

impl Value {
    fn of(bits: u128, width: u32) -> Value {
        Value { bits: bits & mask(width), width: Some(width) }
    }

    /// As P4 wants it: of this width, or a number that fits.
    fn as_wide(self, width: u32, what: &str) -> u128 {
        match self.width {
            Some(found) => assert_eq!(found, width, "{what} has {width} bits"),
            None => assert!(self.bits <= mask(width), "{what} has {width} bits"),
        }
        self.bits
    }
}

fn mask(width: u32) -> u128 {
    (1 << width) - 1
}

#[derive(Debug)]
struct Entry {
    keys: Vec<u128>,
    action: String,
    data: Vec<u128>,
}

/// The switch. Tables and the like are called by their control's name and their own.
pub struct Switch {
    pub program: Arc<Program>,
    tables: BTreeMap<String, BTreeMap<u64, Entry>>,
    registers: BTreeMap<String, Vec<u128>>,
    counters: BTreeMap<String, Vec<u64>>,
    /// The nodes of each multicast group, and each node's copies' number and ports.
    multicast: BTreeMap<u16, Vec<u64>>,
    nodes: BTreeMap<u64, (u16, Vec<u16>)>,
    handles: u64,
}

/// A packet between its parser and its deparser.
#[derive(Clone)]
struct Packet {
    /// All fields of headers and metadata.
    fields: BTreeMap<String, (u128, u32)>,
    valid: BTreeSet<String>,
    rest: Vec<u8>,
    sent: Vec<u8>,
}

type Locals = BTreeMap<String, (u128, u32)>;

impl Switch {
    pub fn new(program: &str) -> Switch {
        let mut switch = Switch {
            program: Arc::new(syntax::read(program)),
            tables: BTreeMap::new(),
            registers: BTreeMap::new(),
            counters: BTreeMap::new(),
            multicast: BTreeMap::new(),
            nodes: BTreeMap::new(),
            handles: 0,
        };
        switch.reset();
        for (name, control) in &switch.program.controls {
            for (table, Table { actions, default, .. }) in &control.tables {
                let known =
                    |action: &String| action == "NoAction" || control.actions.contains_key(action);
                assert!(actions.iter().all(known), "{name}.{table}: {actions:?}");
                assert!(actions.contains(&default.0), "{name}.{table}: {}", default.0);
            }
        }
        switch
    }

    fn reset(&mut self) {
        let program = Arc::clone(&self.program);
        self.multicast.clear();
        self.nodes.clear();
        for (name, control) in &program.controls {
            for table in control.tables.keys() {
                self.tables.insert(format!("{name}.{table}"), BTreeMap::new());
            }
            for (register, (_, size)) in &control.registers {
                let size = self.constant(size) as usize;
                self.registers.insert(format!("{name}.{register}"), vec![0; size]);
            }
            for (counter, size) in &control.counters {
                let size = self.constant(size) as usize;
                self.counters.insert(format!("{name}.{counter}"), vec![0; size]);
            }
        }
    }

    /// A number that the program names, or another one.
    pub fn constant(&self, expression: &Expression) -> u128 {
        let nothing = Packet {
            fields: BTreeMap::new(),
            valid: BTreeSet::new(),
            rest: Vec::new(),
            sent: Vec::new(),
        };
        self.evaluate(expression, &nothing, &Locals::new()).bits
    }

    /// The fields of a header, by its name in `hdr`.
    pub fn header(&self, name: &str) -> &Fields {
        let members = &self.program.structs["headers_t"];
        let (_, kind) = members.iter().find(|(member, _)| member == name).expect("a header");
        &self.program.headers[kind]
    }

    /// What leaves through which port when this comes in through a port.
    pub fn frame(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let program = Arc::clone(&self.program);
        let [_, verify, ingress, egress, compute, deparse] = &program.main[..] else {
            panic!("a switch has six parts")
        };
        let mut packet = self.parse(port, frame);
        self.control(verify, &mut packet);
        self.control(ingress, &mut packet);
        let standard =
            |packet: &Packet, field: &str| packet.fields[&format!("standard_metadata.{field}")].0;
        let group = standard(&packet, "mcast_grp") as u16;
        let spec = standard(&packet, "egress_spec");
        let copies: Vec<(u16, u16)> = if group != 0 {
            let nodes = self.multicast.get(&group).into_iter().flatten();
            let nodes = nodes.map(|node| &self.nodes[node]);
            nodes.flat_map(|(copy, ports)| ports.iter().map(|&port| (*copy, port))).collect()
        } else if spec == DROP {
            Vec::new()
        } else {
            vec![(0, spec as u16)]
        };
        let mut sent = Vec::new();
        for (copy, port) in copies {
            let mut packet = packet.clone();
            packet.set("standard_metadata.egress_spec", 0);
            packet.set("standard_metadata.egress_port", u128::from(port));
            packet.set("standard_metadata.egress_rid", u128::from(copy));
            self.control(egress, &mut packet);
            if standard(&packet, "egress_spec") == DROP {
                continue;
            }
            self.control(compute, &mut packet);
            self.control(deparse, &mut packet);
            packet.sent.extend_from_slice(&packet.rest);
            sent.push((port, packet.sent));
        }
        sent
    }

    fn parse(&self, port: u16, frame: &[u8]) -> Packet {
        let mut fields = BTreeMap::new();
        for (name, width) in STANDARD_METADATA {
            fields.insert(format!("standard_metadata.{name}"), (0, width));
        }
        for (name, width) in &self.program.structs["metadata_t"] {
            let width = width.parse().expect("metadata are bits");
            fields.insert(format!("meta.{name}"), (0, width));
        }
        for (header, _) in &self.program.structs["headers_t"] {
            for (field, width) in self.header(header) {
                fields.insert(format!("hdr.{header}.{field}"), (0, *width));
            }
        }
        let (valid, rest, sent) = (BTreeSet::new(), frame.to_vec(), Vec::new());
        let mut packet = Packet { fields, valid, rest, sent };
        packet.set("standard_metadata.ingress_port", u128::from(port));
        let mut state = "start";
        // What is too short goes on as far as it was read.
        while state != "accept" && self.extract(state, &mut packet).is_some() {
            let Some(next) = self.transition(state, &packet) else { break };
            state = next;
        }
        packet
    }

    fn extract(&self, state: &str, packet: &mut Packet) -> Option<()> {
        for statement in &self.program.states[state].body {
            let Statement::Call(name, arguments) = statement else { panic!("{statement:?}") };
            let [Expression::Name(header)] = &arguments[..] else { panic!("{arguments:?}") };
            assert_eq!(name, "packet.extract");
            let fields = self.header(header.strip_prefix("hdr.").expect("a header"));
            let bits: u32 = fields.iter().map(|(_, width)| width).sum();
            assert_eq!(bits % 8, 0, "{header} is of bytes");
            let bytes = bits as usize / 8;
            if packet.rest.len() < bytes {
                return None;
            }
            let rest = packet.rest.split_off(bytes);
            let taken = std::mem::replace(&mut packet.rest, rest);
            let mut at = 0;
            for (field, width) in fields {
                let bit = |at: u32| u128::from(taken[at as usize / 8] >> (7 - at % 8) & 1);
                let value = (at..at + width).fold(0, |value, at| value << 1 | bit(at));
                packet.set(&format!("{header}.{field}"), value);
                at += width;
            }
            packet.valid.insert(header.clone());
        }
        Some(())
    }

    fn transition<'a>(&'a self, state: &str, packet: &Packet) -> Option<&'a str> {
        let state = &self.program.states[state];
        let left = 8 * packet.rest.len() as u32;
        let short =
            |looked: &Expression| matches!(looked, Expression::Lookahead(bits) if left < *bits);
        if state.select.iter().any(short) {
            return None;
        }
        let locals = Locals::new();
        let looked = state.select.iter().map(|one| self.evaluate(one, packet, &locals));
        let looked: Vec<Value> = looked.collect();
        let case = state.cases.iter().find(|(values, _)| {
            values.iter().zip(&looked).all(|(value, looked)| {
                let width = looked.width.expect("of a field");
                self.evaluate(value, packet, &locals).as_wide(width, "a case") == looked.bits
            })
        });
        Some(&case.expect("a parser has a default").1)
    }

    fn control(&mut self, name: &str, packet: &mut Packet) {
        let program = Arc::clone(&self.program);
        self.execute(name, &program.controls[name].apply, packet, &mut Locals::new());
    }

    fn execute(
        &mut self,
        control: &str,
        statements: &[Statement],
        packet: &mut Packet,
        locals: &mut Locals,
    ) {
        for statement in statements {
            match statement {
                Statement::Declare(name, width) => {
                    locals.insert(name.clone(), (0, *width));
                }
                Statement::Assign(to, value) => {
                    let value = self.evaluate(value, packet, locals);
                    let place = locals.get_mut(to).or_else(|| packet.fields.get_mut(to));
                    let place = place.unwrap_or_else(|| panic!("there is no {to}"));
                    place.0 = value.as_wide(place.1, to);
                }
                Statement::If(condition, then, otherwise) => {
                    let holds = self.evaluate(condition, packet, locals).bits == 1;
                    let next = if holds { then } else { otherwise };
                    self.execute(control, next, packet, locals);
                }
                Statement::Call(name, arguments) => {
                    self.call(control, name, arguments, packet, locals);
                }
            }
        }
    }

    fn call(
        &mut self,
        control: &str,
        name: &str,
        arguments: &[Expression],
        packet: &mut Packet,
        locals: &mut Locals,
    ) {
        let program = Arc::clone(&self.program);
        let scope = &program.controls[control];
        let word = |switch: &Switch, at: usize, width: u32| {
            switch.evaluate(&arguments[at], packet, locals).as_wide(width, name)
        };
        match (name.split_once('.'), name) {
            (Some((table, "apply")), _) => {
                self.apply(control, table, &scope.tables[table], packet);
            }
            (Some((register, "read")), _) => {
                let place = word(self, 1, 32) as usize;
                let Expression::Name(to) = &arguments[0] else { panic!("{arguments:?}") };
                let to = locals.get_mut(to).expect("a variable");
                assert_eq!(to.1, scope.registers[register].0, "{register}");
                to.0 = self.registers[&format!("{control}.{register}")][place];
            }
            (Some((register, "write")), _) => {
                let (place, width) = (word(self, 0, 32) as usize, scope.registers[register].0);
                let value = word(self, 1, width);
                self.registers.get_mut(&format!("{control}.{register}")).expect("one")[place] =
                    value;
            }
            (Some((counter, "count")), _) => {
                let place = word(self, 0, 32) as usize;
                self.counters.get_mut(&format!("{control}.{counter}")).expect("one")[place] += 1;
            }
            (_, "mark_to_drop") => {
                packet.set("standard_metadata.egress_spec", DROP);
                packet.set("standard_metadata.mcast_grp", 0);
            }
            (_, "verify_checksum") => {
                let (applies, sum, field) = self.checksum(arguments, packet, locals);
                if applies && packet.fields[field].0 != u128::from(sum) {
                    packet.set("standard_metadata.checksum_error", 1);
                }
            }
            (_, "update_checksum") => {
                let (applies, sum, field) = self.checksum(arguments, packet, locals);
                if applies {
                    packet.set(field, u128::from(sum));
                }
            }
            (_, "packet.emit") => {
                let [Expression::Name(header)] = arguments else { panic!("{arguments:?}") };
                self.emit(header, packet);
            }
            _ => {
                let data = scope.actions[name].parameters.iter().enumerate();
                let data: Vec<u128> = data.map(|(at, (_, width))| word(self, at, *width)).collect();
                assert_eq!(data.len(), arguments.len(), "{name}");
                self.act(control, name, &data, packet);
            }
        }
    }

    fn apply(&mut self, control: &str, name: &str, table: &Table, packet: &mut Packet) {
        let keys: Vec<u128> = table.keys.iter().map(|key| packet.fields[key].0).collect();
        let entries = &self.tables[&format!("{control}.{name}")];
        let found = entries.values().find(|entry| entry.keys == keys);
        let (action, data) = match found {
            Some(entry) => (entry.action.clone(), entry.data.clone()),
            None => {
                let (action, data) = &table.default;
                (action.clone(), data.iter().map(|word| self.constant(word)).collect())
            }
        };
        if action != "NoAction" {
            self.act(control, &action, &data, packet);
        }
    }

    fn act(&mut self, control: &str, name: &str, data: &[u128], packet: &mut Packet) {
        let program = Arc::clone(&self.program);
        let action = &program.controls[control].actions[name];
        let bind = |((name, width), value): (&(String, u32), &u128)| {
            (name.clone(), (*value & mask(*width), *width))
        };
        let mut locals: Locals = action.parameters.iter().zip(data).map(bind).collect();
        self.execute(control, &action.body, packet, &mut locals);
    }

    /// Whether it applies, the sum of RFC 1071, and the field that it belongs in.
    fn checksum<'a>(
        &self,
        arguments: &'a [Expression],
        packet: &Packet,
        locals: &Locals,
    ) -> (bool, u16, &'a str) {
        let [applies, Expression::List(fields), Expression::Name(field), Expression::Name(kind)] =
            arguments
        else {
            panic!("{arguments:?}")
        };
        assert_eq!(kind, "HashAlgorithm.csum16");
        let (mut word, mut bits, mut sum) = (0_u32, 0, 0_u32);
        for value in fields.iter().map(|field| self.evaluate(field, packet, locals)) {
            for bit in (0..value.width.expect("of a field")).rev() {
                word = word << 1 | (value.bits >> bit & 1) as u32;
                bits += 1;
                if bits % 16 == 0 {
                    sum += std::mem::take(&mut word);
                }
            }
        }
        assert_eq!(bits % 16, 0, "a checksum is of whole words");
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let applies = self.evaluate(applies, packet, locals).bits == 1;
        (applies, !(sum as u16), field)
    }

    fn emit(&self, header: &str, packet: &mut Packet) {
        if !packet.valid.contains(header) {
            return;
        }
        let (mut byte, mut bits) = (0_u8, 0);
        for (field, width) in self.header(header.strip_prefix("hdr.").expect("a header")) {
            let value = packet.fields[&format!("{header}.{field}")].0;
            for bit in (0..*width).rev() {
                byte = byte << 1 | (value >> bit & 1) as u8;
                bits += 1;
                if bits % 8 == 0 {
                    packet.sent.push(byte);
                }
            }
        }
    }

    fn evaluate(&self, expression: &Expression, packet: &Packet, locals: &Locals) -> Value {
        match expression {
            Expression::Number(bits, width) => Value { bits: *bits, width: *width },
            Expression::Name(name) => {
                if let Some((width, value)) = self.program.constants.get(name) {
                    return Value::of(self.evaluate(value, packet, locals).bits, *width);
                }
                let place = locals.get(name).or_else(|| packet.fields.get(name));
                let &(bits, width) = place.unwrap_or_else(|| panic!("there is no {name}"));
                Value::of(bits, width)
            }
            Expression::Call(name, arguments) => {
                assert!(arguments.is_empty(), "{name}");
                let header = name.strip_suffix(".isValid").expect("nothing else has a value");
                Value::of(u128::from(packet.valid.contains(header)), 1)
            }
            Expression::Lookahead(width) => {
                let bytes = &packet.rest[..*width as usize / 8];
                Value::of(bytes.iter().fold(0, |value, &b| value << 8 | u128::from(b)), *width)
            }
            Expression::Cast(width, inside) => {
                Value::of(self.evaluate(inside, packet, locals).bits, *width)
            }
            Expression::Binary(operator, left, right) => {
                let left = self.evaluate(left, packet, locals);
                let right = self.evaluate(right, packet, locals);
                let width = left.width.or(right.width).expect("a width");
                let (a, b) = (left.as_wide(width, operator), right.as_wide(width, operator));
                match *operator {
                    "+" => Value::of(a.wrapping_add(b), width),
                    "-" => Value::of(a.wrapping_sub(b), width),
                    "==" => Value::of(u128::from(a == b), 1),
                    "!=" => Value::of(u128::from(a != b), 1),
                    "||" => Value::of(a | b, 1),
                    "&&" => Value::of(a & b, 1),
                    other => panic!("what is {other}?"),
                }
            }
            Expression::List(_) => panic!("a list has no value"),
        }
    }
}

impl Packet {
    fn set(&mut self, field: &str, value: u128) {
        let place = self.fields.get_mut(field).unwrap_or_else(|| panic!("there is no {field}"));
        place.0 = value & mask(place.1);
    }
}
