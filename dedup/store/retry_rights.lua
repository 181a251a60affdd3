-- Ask which of the commands that a schedule needs this user may not run on its keys.
--
-- KEYS     of retry_store.lua; KEYS[8] is that of no session
-- ARGV[1]  what an acknowledgement waits for: 'server', 'disk' or 'replica'
--
-- Reply    the names of those commands; none where Redis cannot tell (before 7.0)
--
-- Changes nothing.

local refused = {}
if not redis.acl_check_cmd then return refused end
local commands = {
    {'DEL', KEYS[8]},
    {'HDEL', KEYS[2], 'id'},
    {'HEXISTS', KEYS[2], 'id'},
    {'HGET', KEYS[1], 'bytes'},
    {'HINCRBY', KEYS[1], 'bytes', '1'},
    {'HKEYS', KEYS[2]},
    {'HLEN', KEYS[4]},
    {'HSET', KEYS[4], 'id', '1'},
    {'HSETNX', KEYS[2], 'id', '1'},
    {'HSTRLEN', KEYS[4], 'id'},
    {'INFO', 'server'},
    {'SADD', KEYS[7], 'id'},
    {'SISMEMBER', KEYS[7], 'id'},
    {'SREM', KEYS[7], 'id'},
    {'TIME'},
    {'ZADD', KEYS[3], '1', 'id'},
    {'ZCOUNT', KEYS[3], '-inf', '0'},
    {'ZRANGE', KEYS[8], '0', '0'},
    {'ZRANGEBYSCORE', KEYS[3], '-inf', '0'},
    {'ZREM', KEYS[3], 'id'},
    {'ZSCORE', KEYS[8], 'id'},
}
if ARGV[1] == 'disk' then table.insert(commands, {'WAITAOF', '1', '0', '0'}) end
if ARGV[1] == 'replica' then table.insert(commands, {'WAIT', '1', '0'}) end
for _, command in ipairs(commands) do
    -- It raises an error at a command that this server does not have: who misses WAITAOF hears of the version.
    local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
    if known and not allowed then table.insert(refused, command[1]) end
end
return refused
