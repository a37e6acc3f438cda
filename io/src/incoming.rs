//! A checkpoint that is fetched from a peer, piece by piece, into the file `incoming`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use smr::{CheckpointChunk, Viewstamp};

use crate::Error;
use crate::checkpoint::full;
use crate::folder::Folder;

pub(crate) const FILE: &str = "incoming";

/// The pieces so far.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: File,
    position: Viewstamp,
    total: u64,
    saved: u64,
}

impl Incoming {
    /// Begins with the piece at offset zero, over whatever was there.
    pub(crate) fn begin(folder: &Folder, chunk: &CheckpointChunk) -> Result<Incoming, Error> {
        let file = full(folder, folder.create_file(FILE))?;
        Ok(Incoming { file, position: chunk.position, total: chunk.total, saved: 0 })
    }

    /// Adds the next piece.
    pub(crate) fn save(&mut self, folder: &Folder, chunk: &CheckpointChunk) -> Result<(), Error> {
        let end = chunk.offset.saturating_add(chunk.bytes.len() as u64);
        let is_same = chunk.position == self.position && chunk.total == self.total;
        if !is_same || chunk.offset != self.saved || end > self.total {
            return Err(Error::OutOfOrder);
        }
        let path = folder.path_of(FILE);
        let written = self.file.write_all_at(&chunk.bytes, self.saved);
        full(folder, written.map_err(|e| Error::os("write", &path, e)))?;
        self.saved = end;
        Ok(())
    }

    /// Brings the pieces to the disk, once they are all there.
    pub(crate) fn complete(self, folder: &Folder, position: Viewstamp) -> Result<u64, Error> {
        if self.position != position || self.saved != self.total {
            return Err(Error::OutOfOrder);
        }
        let path = folder.path_of(FILE);
        full(folder, folder.syncing().data(&self.file, &path))?;
        Ok(self.total)
    }
}
