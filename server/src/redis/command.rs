//! COMMAND: what the command table says, in Redis's form.

use kv::{Place, Spec};
use resp::{Command, Protocol, write};

use super::local::{lower, unknown_subcommand, wrong_arity};
use super::session::State;

pub(super) fn command(state: &State, command: &Command<'_>, out: &mut Vec<u8>) {
    let protocol = state.protocol;
    if command.len() == 1 {
        return info_all(protocol, out);
    }
    match &lower(command, 1)[..] {
        "count" if command.len() == 2 => write::integer(out, kv::all().len() as i64),
        "count" => wrong_arity(out, "command", "count"),
        "info" if command.len() == 2 => info_all(protocol, out),
        "info" => {
            write::array(out, command.len() - 2);
            for name in command.iter().skip(2) {
                match kv::lookup(name) {
                    Some(spec) => info(spec, protocol, out),
                    None => write::null_array(out, protocol),
                }
            }
        }
        "list" if command.len() == 2 => {
            write::array(out, kv::all().len());
            for spec in kv::all() {
                write::bulk(out, spec.name.as_bytes());
            }
        }
        "list" => list_filtered(command, out),
        "docs" => docs(protocol, command, out),
        "getkeys" if command.len() < 3 => wrong_arity(out, "command", "getkeys"),
        "getkeys" => get_keys(command, out),
        _ => unknown_subcommand(out, "command", command.get(1).unwrap_or_default()),
    }
}

fn info_all(protocol: Protocol, out: &mut Vec<u8>) {
    write::array(out, kv::all().len());
    for spec in kv::all() {
        info(spec, protocol, out);
    }
}

fn info(spec: &Spec, protocol: Protocol, out: &mut Vec<u8>) {
    write::array(out, 10);
    write::bulk(out, spec.name.as_bytes());
    write::integer(out, i64::from(spec.arity));
    write::set(out, protocol, spec.flags.len());
    for flag in spec.flags {
        write::simple(out, flag);
    }
    write::integer(out, i64::from(spec.first_key));
    write::integer(out, i64::from(spec.last_key));
    write::integer(out, i64::from(spec.step));
    let categories = [
        match spec.place {
            Place::Write => Some("@write"),
            Place::Read => Some("@read"),
            Place::Local => None,
        },
        Some(if spec.has_flag("fast") { "@fast" } else { "@slow" }),
    ];
    let group = format!("@{}", spec.group);
    write::set(out, protocol, categories.iter().flatten().count() + 1);
    for category in categories.iter().flatten() {
        write::simple(out, category);
    }
    write::simple(out, &group);
    // Tips, key specifications and subcommands are optional to clients.
    write::array(out, 0);
    write::array(out, 0);
    write::array(out, 0);
}

fn list_filtered(command: &Command<'_>, out: &mut Vec<u8>) {
    if command.len() != 5 || lower(command, 2) != "filterby" {
        return write::error(out, "ERR syntax error");
    }
    let wanted = lower(command, 4);
    let fits: Box<dyn Fn(&Spec) -> bool> = match &lower(command, 3)[..] {
        "module" => Box::new(|_| false),
        "aclcat" => Box::new(move |spec| spec.group == wanted || spec.has_flag(&wanted)),
        "pattern" => match wanted.strip_suffix('*') {
            Some(prefix) => {
                let prefix = prefix.to_owned();
                Box::new(move |spec| spec.name.starts_with(&prefix))
            }
            None => Box::new(move |spec| spec.name == wanted),
        },
        _ => return write::error(out, "ERR syntax error"),
    };
    let names: Vec<&str> = kv::all().iter().filter(|s| fits(s)).map(|s| s.name).collect();
    write::array(out, names.len());
    for name in names {
        write::bulk(out, name.as_bytes());
    }
}

fn docs(protocol: Protocol, command: &Command<'_>, out: &mut Vec<u8>) {
    let wanted: Vec<&Spec> = match command.len() {
        2 => kv::all().iter().collect(),
        _ => command.iter().skip(2).filter_map(kv::lookup).collect(),
    };
    write::map(out, protocol, wanted.len());
    for spec in wanted {
        write::bulk(out, spec.name.as_bytes());
        write::map(out, protocol, 1);
        write::bulk(out, b"group");
        write::bulk(out, spec.group.as_bytes());
    }
}

fn get_keys(command: &Command<'_>, out: &mut Vec<u8>) {
    let argv: Vec<&[u8]> = command.iter().skip(2).collect();
    let Some(spec) = kv::lookup(argv[0]) else {
        return write::error(out, "ERR Invalid command specified");
    };
    if spec.first_key <= 0 {
        return write::error(out, "ERR The command has no key arguments");
    }
    if !spec.accepts(argv.len()) {
        return write::error(out, "ERR Invalid number of arguments specified for command");
    }
    let last = match spec.last_key {
        last @ ..0 => argv.len() as i64 + i64::from(last),
        last => i64::from(last),
    };
    let places = (i64::from(spec.first_key)..=last).step_by(spec.step.max(1) as usize);
    let keys: Vec<&[u8]> =
        places.filter_map(|place| argv.get(usize::try_from(place).ok()?).copied()).collect();
    write::array(out, keys.len());
    for key in keys {
        write::bulk(out, key);
    }
}
