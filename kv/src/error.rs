//! What a command can fail with, and the texts that Redis has for it.

use resp::write;

use crate::table::Spec;

/// Why a command was refused. Nothing was changed, unless the command says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    Arity,
    Syntax,
    WrongType,
    NotInteger,
    NotFloat,
    InvalidExpire,
    KeyTooLong,
    /// The whole message, with its code.
    Text(&'static str),
    /// The same, with what the client sent in it.
    Owned(String),
    /// The first argument is no subcommand, or has too many or too few arguments.
    Subcommand,
}

/// What a command returns when its reply is written.
pub(crate) type Outcome = Result<(), Error>;

impl Error {
    /// Appends the error as the reply of `spec`, called with `args`.
    pub(crate) fn write(self, spec: &Spec, args: &[&[u8]], reply: &mut Vec<u8>) {
        let name = spec.name;
        match self {
            Error::Arity => {
                write::error(reply, &format!("ERR wrong number of arguments for '{name}' command"))
            }
            Error::Syntax => write::error(reply, "ERR syntax error"),
            Error::WrongType => write::error(
                reply,
                "WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
            Error::NotInteger => {
                write::error(reply, "ERR value is not an integer or out of range");
            }
            Error::NotFloat => write::error(reply, "ERR value is not a valid float"),
            Error::InvalidExpire => {
                write::error(reply, &format!("ERR invalid expire time in '{name}' command"));
            }
            Error::KeyTooLong => write::error(
                reply,
                &format!("ERR keys and fields are limited to {} bytes", crate::MAX_KEY_LEN),
            ),
            Error::Text(text) => write::error(reply, text),
            Error::Owned(text) => write::error(reply, &text),
            Error::Subcommand => {
                let given = String::from_utf8_lossy(args.first().copied().unwrap_or_default());
                let upper = name.to_uppercase();
                let given: String = given.chars().take(128).collect();
                write::error(
                    reply,
                    &format!("ERR unknown subcommand '{given}'. Try {upper} HELP."),
                );
            }
        }
    }
}
