//! Values at small numbers that are used again, each with a generation that tells its lives apart.

/// The slab.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts what `make` makes, given its place and generation, into a free place.
    pub fn insert(&mut self, make: impl FnOnce(u32, u32) -> T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, value) = &mut self.places[place as usize];
        *generation = generation.wrapping_add(1);
        *value = Some(make(place, *generation));
        self.len += 1;
        place
    }

    pub fn get(&self, place: u32) -> Option<&T> {
        self.places.get(place as usize)?.1.as_ref()
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.1.as_mut()
    }

    /// The value at `place` if it is the one that was put there with `generation`.
    pub fn get_exact(&mut self, place: u32, generation: u32) -> Option<&mut T> {
        match self.places.get_mut(place as usize) {
            Some((now, Some(value))) if *now == generation => Some(value),
            _ => None,
        }
    }

    pub fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.1.take()?;
        self.free.push(place);
        self.len -= 1;
        Some(value)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let values = self.places.iter().enumerate();
        values.filter_map(|(place, (_, value))| Some((place as u32, value.as_ref()?)))
    }
}
