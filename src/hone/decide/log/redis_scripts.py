"""Scripts that a Redis server runs, each as one transaction.

Keys, after the prefix in `KEYS[1]`: `meta`; `stream`, entries with `k` = `source number:seq`, their ids always given by
the server; `sources`, tenant and name -> number; `source:<number>`, its progress and counts; `records:<number>`,
seq -> record, empty once erased or moved; `actions` and `labels`, digest -> part; `uses`, digest -> decisions that use
the part; `erased`, digest -> number; `names`, digest of an id or a key -> `source number:seq:` and what was sent under
it; `leases`, work -> `epoch:end:holder`; `learnt:<work>`, name -> state; `numbers:<work>`, name -> number of saves.
"""

from typing import Final

APPEND: Final = """
local p = KEYS[1]
if redis.call('HLEN', p .. 'erased') ~= tonumber(ARGV[1]) then return {'stale'} end
local place, parts = 3, {}
for _ = 1, tonumber(ARGV[2]) do
  parts[ARGV[place + 1]] = {p .. ARGV[place], ARGV[place + 2]}
  place = place + 3
end
local function keep(digest)
  if parts[digest] then redis.call('HSETNX', parts[digest][1], digest, parts[digest][2]) end
end
local taken = {}
local function claims(tenant, name, seq, digest, number_of_place)
  local number = redis.call('HGET', p .. 'sources', #tenant .. ':' .. tenant .. name)
  if number then
    local first = tonumber(redis.call('HGET', p .. 'source:' .. number, 'first') or 0)
    if tonumber(seq) < first or redis.call('HEXISTS', p .. 'records:' .. number, seq) == 1 then return end
  end
  if redis.call('HEXISTS', p .. 'names', digest) == 1 then taken[#taken + 1] = number_of_place end
end
local begin, row = place, 0
while begin <= #ARGV do
  if ARGV[begin + 6] == '1' then claims(ARGV[begin], ARGV[begin + 1], ARGV[begin + 2], ARGV[begin + 4], row) end
  begin, row = begin + 7, row + 1
end
if #taken > 0 then return {'taken', taken} end
local last = redis.call('XREVRANGE', p .. 'stream', '+', '-', 'COUNT', 1)[1]
local earlier, newest = last and last[1] or '0-0', ''
local sources, order, results = {}, {}, {}
local function opened(tenant, name)
  local key = #tenant .. ':' .. tenant .. name
  if sources[key] then return sources[key] end
  local number = redis.call('HGET', p .. 'sources', key)
  if not number then
    number = redis.call('INCR', p .. 'last_source')
    redis.call('HSET', p .. 'sources', key, number)
    redis.call('HSET', p .. 'source:' .. number, 'tenant', tenant, 'name', name)
  end
  local state = redis.call('HMGET', p .. 'source:' .. number, 'first', 'watermark', 'highest', 'seen')
  local one = {number = number, key = p .. 'source:' .. number, records = p .. 'records:' .. number,
    first = tonumber(state[1] or 0), watermark = tonumber(state[2] or -1), highest = tonumber(state[3] or -1),
    seen = tonumber(state[4] or 0), decisions = 0, outcomes = 0, erased = 0, repeated = 0, refused = 0}
  sources[key] = one
  order[#order + 1] = one
  return one
end
while place <= #ARGV do
  local one, seq = opened(ARGV[place], ARGV[place + 1]), ARGV[place + 2]
  local record, digest, told = ARGV[place + 3], ARGV[place + 4], ARGV[place + 5]
  place = place + 7
  if tonumber(seq) < one.first then
    one.repeated = one.repeated + 1
    results[#results + 1] = 'repeated'
  elseif redis.call('HSETNX', one.records, seq, record) == 1 then
    if digest ~= '' then redis.call('HSETNX', p .. 'names', digest, one.number .. ':' .. seq .. ':' .. told) end
    one.seen = one.seen + 1
    one.highest = math.max(one.highest, tonumber(seq))
    if record == '' then
      one.erased = one.erased + 1
      results[#results + 1] = 'erased'
    else
      newest = redis.call('XADD', p .. 'stream', '*', 'k', one.number .. ':' .. seq)
      local kind = string.sub(record, 1, 1) == 'd' and 'decisions' or 'outcomes'
      one[kind] = one[kind] + 1
      keep(string.sub(record, 26, 41))
      if kind == 'decisions' then
        keep(string.sub(record, 10, 25))
        redis.call('HINCRBY', p .. 'uses', string.sub(record, 10, 25), 1)
      end
      results[#results + 1] = 'stored'
    end
  else
    local held = redis.call('HGET', one.records, seq)
    if held == '' or record == '' or held == record then
      one.repeated = one.repeated + 1
      results[#results + 1] = 'repeated'
    else
      one.refused = one.refused + 1
      results[#results + 1] = held
    end
  end
end
local progress = {}
for _, one in ipairs(order) do
  if one.seen == one.highest + 1 then one.watermark = one.highest end
  while redis.call('HEXISTS', one.records, string.format('%.0f', one.watermark + 1)) == 1 do
    one.watermark = one.watermark + 1
  end
  local numbers = {}
  for _, name in ipairs({'watermark', 'highest', 'seen'}) do
    numbers[#numbers + 1] = name
    numbers[#numbers + 1] = string.format('%.0f', one[name])
  end
  redis.call('HSET', one.key, unpack(numbers))
  for _, name in ipairs({'decisions', 'outcomes', 'erased', 'repeated', 'refused'}) do
    if one[name] > 0 then redis.call('HINCRBY', one.key, name, one[name]) end
  end
  progress[#progress + 1] = tostring(one.number)
end
return {'done', results, progress, earlier, newest}
"""
"""Append: ARGV holds the number of erasures that the client knows, the number of shared parts, (hash, digest, part) of
each, then (tenant, name, seq, record, digest of its id or key, what was sent, 1 for a claim) of each record; an erased
record is empty. A part is stored with the first record that uses it. Nothing is stored if a claimed name is taken."""

EMPTY: Final = """
local p = KEYS[1]
local emptied, sources = 0, {}
for place = 2, #ARGV do
  local entry = redis.call('XRANGE', p .. 'stream', ARGV[place], ARGV[place])[1]
  if entry then
    local number, seq = string.match(entry[2][2], '^(%d+):(%d+)$')
    local records, source = p .. 'records:' .. number, p .. 'source:' .. number
    local record = redis.call('HGET', records, seq)
    redis.call('XDEL', p .. 'stream', ARGV[place])
    if record and record ~= '' then
      local is_decision = string.sub(record, 1, 1) == 'd'
      redis.call('HSET', records, seq, '')
      redis.call('HINCRBY', source, is_decision and 'decisions' or 'outcomes', -1)
      redis.call('HINCRBY', source, ARGV[1], 1)
      sources[number] = true
      emptied = emptied + 1
      local digest = string.sub(record, 10, 25)
      if is_decision and redis.call('HINCRBY', p .. 'uses', digest, -1) <= 0 then
        redis.call('HDEL', p .. 'uses', digest)
        redis.call('HDEL', p .. 'actions', digest)
      end
    end
  end
end
for number in pairs(sources) do
  local records, source = p .. 'records:' .. number, p .. 'source:' .. number
  local first = tonumber(redis.call('HGET', source, 'first') or 0)
  while redis.call('HGET', records, string.format('%.0f', first)) == '' do
    redis.call('HDEL', records, string.format('%.0f', first))
    first = first + 1
  end
  redis.call('HSET', source, 'first', string.format('%.0f', first))
end
return emptied
"""
"""Empty: ARGV holds `erased` or `retired`, then ids of entries. Seqs that no record stands before are known by `first`
alone."""

NAME: Final = """
for place = 1, #ARGV, 2 do redis.call('HSETNX', KEYS[1] .. 'names', ARGV[place], ARGV[place + 1]) end
"""
"""Name: ARGV holds digests of ids, and `source number:seq:` of each."""

LEASE: Final = """
local key, work, holder, now = KEYS[1] .. 'leases', ARGV[1], ARGV[2], tonumber(ARGV[3])
local epoch, ends, owner = string.match(redis.call('HGET', key, work) or '0:0:', '^(%d+):([^:]*):(.*)$')
if owner ~= holder and tonumber(ends) > now then return {epoch, ends, owner} end
if owner ~= holder or epoch ~= ARGV[5] then epoch = string.format('%.0f', tonumber(epoch) + 1) end
redis.call('HSET', key, work, epoch .. ':' .. ARGV[4] .. ':' .. holder)
return {epoch, ARGV[4], holder}
"""
"""Lease: ARGV holds work, holder, present time, end of the lease, and the epoch that the holder has (0: none)."""

END_LEASE: Final = """
local epoch, _, owner = string.match(redis.call('HGET', KEYS[1] .. 'leases', ARGV[1]) or '0:0:', '^(%d+):([^:]*):(.*)$')
if owner == ARGV[2] and epoch == ARGV[3] then
  redis.call('HSET', KEYS[1] .. 'leases', ARGV[1], epoch .. ':0:' .. owner)
end
"""
"""End a lease: ARGV holds work, holder and epoch."""

SAVE: Final = """
local work = ARGV[1]
local epoch, ends, owner = string.match(redis.call('HGET', KEYS[1] .. 'leases', work) or '0:0:', '^(%d+):([^:]*):(.*)$')
if owner ~= ARGV[2] or epoch ~= ARGV[3] or tonumber(ends) <= tonumber(ARGV[4]) then return 0 end
for place = 5, #ARGV, 2 do
  redis.call('HSET', KEYS[1] .. 'learnt:' .. work, ARGV[place], ARGV[place + 1])
  redis.call('HINCRBY', KEYS[1] .. 'numbers:' .. work, ARGV[place], 1)
end
return 1
"""
"""Save what was learnt: ARGV holds work, holder, epoch and present time, then (name, state) of each."""

FENCE: Final = """
local leases = redis.call('HGETALL', KEYS[1] .. 'leases')
for place = 1, #leases, 2 do
  local epoch, _, owner = string.match(leases[place + 1], '^(%d+):([^:]*):(.*)$')
  local after = string.format('%.0f', tonumber(epoch) + 1)
  redis.call('HSET', KEYS[1] .. 'leases', leases[place], after .. ':0:' .. owner)
  redis.call('HDEL', KEYS[1] .. 'learnt:' .. leases[place], ARGV[1])
  redis.call('HDEL', KEYS[1] .. 'numbers:' .. leases[place], ARGV[1])
end
"""
"""Fence: end all leases and delete the state that ARGV names of every work."""
