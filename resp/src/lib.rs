//! The Redis serialization protocol, versions 2 and 3: parser and writer.
