//! What `simple_switch_CLI` understands and answers, as much as is said to it.

use std::sync::Arc;

use super::{Entry, Switch, mask};

type Answer = Result<String, String>;

impl Switch {
    /// Does as it is told; refusals begin as those of the real one do.
    pub fn command(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["reset_state"] => {
                self.reset();
                Ok(String::new())
            }
            ["table_add", table, action, ref rest @ ..] => self.table_add(table, action, rest),
            ["table_modify", table, action, handle, ref data @ ..] => {
                self.table_modify(table, action, handle, data)
            }
            ["table_delete", table, handle] => self.table_delete(table, handle),
            ["register_write", register, place, value] => {
                let value = value.parse().expect("a number");
                self.word(register, place).map(|word| {
                    *word = value;
                    String::new()
                })
            }
            ["register_read", register, place] => {
                self.word(register, place).map(|word| format!("{register}[{place}]= {word}"))
            }
            ["counter_read", counter, place] => {
                let counts = self.counters.get(counter).ok_or("Error: no such counter");
                let index: usize = place.parse().expect("a number");
                counts
                    .map(|counts| counts[index])
                    .map(|count| {
                        format!("{counter}[{place}]= ({} bytes, {count} packets)", 64 * count)
                    })
                    .map_err(str::to_owned)
            }
            ["mc_mgrp_create" | "mc_mgrp_destroy", group] => self.group(words[0], group),
            ["mc_node_create", copy, ref ports @ ..] => {
                self.handles += 1;
                let ports = ports.iter().map(|port| port.parse().expect("a port")).collect();
                let node = (copy.parse().expect("16 bits"), ports);
                self.nodes.insert(self.handles, node);
                Ok(format!("node was created with handle {}", self.handles))
            }
            ["mc_node_associate" | "mc_node_dissociate", group, node] => {
                self.associate(words[0] == "mc_node_associate", group, node)
            }
            ["mc_node_destroy", node] => self.destroy(node),
            _ => Err(format!("*** Unknown syntax: {line}")),
        };
        answer.unwrap_or_else(|refusal| refusal) + "\n"
    }

    fn word(&mut self, register: &str, place: &str) -> Result<&mut u128, String> {
        let words = self.registers.get_mut(register).ok_or("Error: no such register")?;
        let place: usize = place.parse().expect("a number");
        words.get_mut(place).ok_or_else(|| "Invalid register operation (INVALID_INDEX)".to_owned())
    }

    /// The action without its control, and its data.
    fn entry(
        &self,
        table: &str,
        action: &str,
        data: &[&str],
    ) -> Result<(String, Vec<u128>), String> {
        let program = Arc::clone(&self.program);
        let (control, name) = table.split_once('.').ok_or("Error: no control is named")?;
        let control_of = program.controls.get(control).ok_or("Error: no such control")?;
        let table = control_of.tables.get(name).ok_or("Error: no such table")?;
        let action = action.strip_prefix(&format!("{control}.")).ok_or("Error: of another one")?;
        if !table.actions.iter().any(|known| known == action) {
            return Err(format!("Error: Table {name} has no action {action}"));
        }
        let parameters = &control_of.actions[action].parameters;
        if parameters.len() != data.len() {
            return Err(format!("Error: Action {action} needs {} parameters", parameters.len()));
        }
        let data = data.iter().zip(parameters).map(|(word, (_, width))| number(word, *width));
        Ok((action.to_owned(), data.collect::<Result<_, _>>()?))
    }

    fn table_add(&mut self, table: &str, action: &str, rest: &[&str]) -> Answer {
        let arrow = rest.iter().position(|&word| word == "=>").ok_or("Error: no =>")?;
        let (action, data) = self.entry(table, action, &rest[arrow + 1..])?;
        let program = Arc::clone(&self.program);
        let (control, name) = table.split_once('.').expect("looked at");
        let declared = &program.controls[control].tables[name];
        if declared.keys.len() != arrow {
            return Err(format!("Error: Table {name} needs {} key fields", declared.keys.len()));
        }
        let width = |key: &str| {
            let parts: Vec<&str> = key.split('.').collect();
            match parts[..] {
                ["hdr", header, field] => {
                    let fields = self.header(header);
                    fields.iter().find(|(name, _)| name == field).expect("a field").1
                }
                _ => 16,
            }
        };
        let keys =
            rest[..arrow].iter().zip(&declared.keys).map(|(word, key)| number(word, width(key)));
        let keys: Vec<u128> = keys.collect::<Result<_, _>>()?;
        let entries = self.tables.get_mut(table).expect("it is declared");
        if entries.values().any(|entry| entry.keys == keys) {
            return Err("Invalid table operation (DUPLICATE_ENTRY)".to_owned());
        }
        if entries.len() == declared.size {
            return Err("Invalid table operation (TABLE_FULL)".to_owned());
        }
        self.handles += 1;
        entries.insert(self.handles, Entry { keys, action, data });
        Ok(format!("Entry has been added with handle {}", self.handles))
    }

    fn table_modify(&mut self, table: &str, action: &str, handle: &str, data: &[&str]) -> Answer {
        let (action, data) = self.entry(table, action, data)?;
        let handle: u64 = handle.parse().expect("a handle");
        let entry = self.tables.get_mut(table).expect("it is declared").get_mut(&handle);
        let entry = entry.ok_or("Invalid table operation (INVALID_HANDLE)")?;
        (entry.action, entry.data) = (action, data);
        Ok(String::new())
    }

    fn table_delete(&mut self, table: &str, handle: &str) -> Answer {
        let handle: u64 = handle.parse().expect("a handle");
        let entries = self.tables.get_mut(table).ok_or("Error: no such table")?;
        let entry = entries.remove(&handle).ok_or("Invalid table operation (INVALID_HANDLE)")?;
        Ok(format!("Deleting entry of {}", entry.action))
    }

    fn group(&mut self, command: &str, group: &str) -> Answer {
        let group = group.parse().expect("16 bits");
        if command == "mc_mgrp_create" {
            match self.multicast.insert(group, Vec::new()) {
                None => Ok(String::new()),
                Some(_) => Err("Invalid PRE operation (ERROR)".to_owned()),
            }
        } else {
            match self.multicast.remove(&group) {
                Some(nodes) if nodes.is_empty() => Ok(String::new()),
                _ => Err("Invalid PRE operation (INVALID_MGID)".to_owned()),
            }
        }
    }

    fn associate(&mut self, joins: bool, group: &str, node: &str) -> Answer {
        let node: u64 = node.parse().expect("a handle");
        let nodes = self.multicast.get_mut(&group.parse().expect("16 bits"));
        let nodes = nodes.ok_or("Invalid PRE operation (INVALID_MGRP_HANDLE)")?;
        if !self.nodes.contains_key(&node) || nodes.contains(&node) == joins {
            return Err("Invalid PRE operation (INVALID_L1_HANDLE)".to_owned());
        }
        if joins {
            nodes.push(node);
        } else {
            nodes.retain(|&known| known != node);
        }
        Ok(String::new())
    }

    fn destroy(&mut self, node: &str) -> Answer {
        let node: u64 = node.parse().expect("a handle");
        if self.multicast.values().flatten().any(|&known| known == node) {
            return Err("Invalid PRE operation (ERROR)".to_owned());
        }
        let gone = self.nodes.remove(&node).ok_or("Invalid PRE operation (INVALID_L1_HANDLE)")?;
        Ok(format!("Destroying node of {}", gone.0))
    }
}

fn number(word: &str, width: u32) -> Result<u128, String> {
    let value = match word.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16),
        None => word.parse(),
    };
    let value = value.map_err(|_| format!("Invalid runtime data: {word}"))?;
    let fits = value <= mask(width.div_ceil(8) * 8);
    fits.then_some(value).ok_or_else(|| "Invalid runtime data: Parameter is too large".to_owned())
}
